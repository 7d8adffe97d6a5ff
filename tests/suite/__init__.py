"""How tests are run: shared among workers, some exclusively, some twice; their cost; the number of examples."""
