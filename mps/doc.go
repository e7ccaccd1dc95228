// Package mps limits the compute time of pods that share a GPU, through the control daemon of NVIDIA's Multi-Process
// Service (MPS) with protocol 3, which drivers have since version 615. Daemon runs the control daemon, and Control sends
// commands to it.
//
// Each GPU has its own MPS server, because a fault of a client ends all clients of its server. Each share of a GPU is a
// namespace of that server, with a maximum percentage of the GPU's multiprocessors. A program is in the namespace whose
// directory it gets as CUDA_MPS_PIPE_DIRECTORY, so a container must get no other directory: the namespace "default" of a
// server can use all of the GPU unless it is limited, too.
//
// The package never loads NVML or CUDA. The MPS documentation is at https://docs.nvidia.com/deploy/mps.
package mps
