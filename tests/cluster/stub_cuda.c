/*
 * A stand-in for libcuda.so.1, for virtual nodes without a GPU: it can be loaded, and knows no device.
 */
int cuInit(unsigned flags) { (void)flags; return 100; /* CUDA_ERROR_NO_DEVICE */ }
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
