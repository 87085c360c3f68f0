// NVRTC, the compiler of CUDA.
#pragma once
#include <vector>

// Machine code, an ELF file, of `source`; throws NVRTC's own words. `path` names the libnvrtc.
std::vector<char> compiled_by_nvrtc(const char *path, const char *source, std::vector<const char *> options);
