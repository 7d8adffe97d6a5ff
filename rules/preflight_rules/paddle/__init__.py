"""PaddlePaddle: parameter servers, Fleet, Fluid and older releases."""
