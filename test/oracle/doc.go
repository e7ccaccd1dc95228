// Package oracle compares the files, device nodes and variables in gpucdi's CDI specs with those in the specs of
// NVIDIA's library nvcdi, on the same simulated machines. A difference is a failure unless it is listed with a reason;
// for Jetson and WSL2, gpucdi's specs may also contain more files.
package oracle
