"""Code that the collective, pipeline and parameter-server runs share."""
