// Package oracle compares the files, device nodes and variables in gpucdi's CDI specs with the specs of NVIDIA's
// library nvcdi, for the same simulated drivers. A difference is a failure unless it is listed with a reason.
package oracle
