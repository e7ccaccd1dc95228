/* A driver library that nothing calls: it is there to be found and loaded.
 * Its SONAME is written over the placeholder it is linked with. */
__attribute__((visibility("default"))) const char nvsim_stub[] = "simulated NVIDIA driver";
