// Functions of libtorch's CUDA half that are looked up by name: it is loaded when a trial wants it, so nothing links it. The names
// stand here once, and kiln_cuda_symbol tells them to whoever checks that a libtorch has them (`make check-cuda-flavour`).
#pragma once

namespace cuda_symbol {
// Any function that the real library has; the empty one that lets a CPU flavor be linked has none.
inline constexpr const char WARP_SIZE[] = "_ZN2at4cuda9warp_sizeEv";
// torch::cuda::nccl::all_reduce of torch/csrc/cuda/nccl.h.
inline constexpr const char ALL_REDUCE[] =
    "_ZN5torch4cuda4nccl10all_reduceERKSt6vectorIN2at6TensorESaIS4_EERS6_iRKS2_ISt8optionalIN3c104cuda10CUDAStreamEESaISE_EERKS2_IPvSaISJ_EE";
// at::cuda::CUDAGraph of ATen/cuda/CUDAGraph.h: what the capture of a whole step takes.
inline constexpr const char GRAPH_CONSTRUCTOR[] = "_ZN2at4cuda9CUDAGraphC1Eb";
inline constexpr const char GRAPH_DESTRUCTOR[] = "_ZN2at4cuda9CUDAGraphD1Ev";
inline constexpr const char GRAPH_CAPTURE_BEGIN[] = "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode";
inline constexpr const char GRAPH_CAPTURE_END[] = "_ZN2at4cuda9CUDAGraph11capture_endEv";
inline constexpr const char GRAPH_REPLAY[] = "_ZN2at4cuda9CUDAGraph6replayEv";
inline constexpr const char GRAPH_RESET[] = "_ZN2at4cuda9CUDAGraph5resetEv";
inline constexpr const char GRAPH_REGISTER_GENERATOR[] = "_ZN2at4cuda9CUDAGraph24register_generator_stateERKNS_9GeneratorE";

// Of the CUDA runtime, which libtorch brings; public, so that no version lacks it, and not in the list below.
inline constexpr const char BEGIN_CAPTURE[] = "cudaStreamBeginCapture";

inline constexpr const char *ALL[] = {
    WARP_SIZE,     ALL_REDUCE,   GRAPH_CONSTRUCTOR, GRAPH_DESTRUCTOR,         GRAPH_CAPTURE_BEGIN, GRAPH_CAPTURE_END,
    GRAPH_REPLAY,  GRAPH_RESET,  GRAPH_REGISTER_GENERATOR,
};
}  // namespace cuda_symbol
