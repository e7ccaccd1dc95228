/* Stub of a driver library that programs load but do not call. Its SONAME is
 * written over the placeholder that it is linked with. */
__attribute__((visibility("default"))) const char nvsim_stub[] = "simulated NVIDIA driver";
