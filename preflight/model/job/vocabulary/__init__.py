"""Every quantity a source may state, one module for each subject."""
