"""PaddlePaddle: parameter servers, Fleet, Fluid, and the releases before them."""
