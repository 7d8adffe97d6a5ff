axolotl train config.yml
