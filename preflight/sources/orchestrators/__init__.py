"""Task files of orchestrators that run one script on every node: SkyPilot, dstack, MosaicML's mcli."""
