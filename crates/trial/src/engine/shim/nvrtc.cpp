// NVRTC, the compiler that cuDNN and libtorch call for kernels that are made while a program runs. Its public interface is declared
// here as far as it is used, so no CUDA header is needed; compiling needs no driver.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "nvrtc.h"
#include "shim.h"

namespace {
// A loaded libnvrtc; it stays loaded.
struct Nvrtc {
  void *library;

  explicit Nvrtc(const char *path) : library(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (library == nullptr) throw std::runtime_error(dlerror());
  }

  template <typename Function>
  Function *find(const char *name) const {
    auto found = dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("this libnvrtc has no ") + name);
    return reinterpret_cast<Function *>(found);
  }
};

// A program that NVRTC holds, and the words it had on it.
struct Program {
  const Nvrtc &nvrtc;
  void *handle = nullptr;

  ~Program() {
    if (handle != nullptr) nvrtc.find<int(void **)>("nvrtcDestroyProgram")(&handle);
  }

  std::string log() const {
    size_t size = 0;
    if (nvrtc.find<int(void *, size_t *)>("nvrtcGetProgramLogSize")(handle, &size) != 0 || size < 2) return "";
    std::string text(size, '\0');
    if (nvrtc.find<int(void *, char *)>("nvrtcGetProgramLog")(handle, text.data()) != 0) return "";
    return text.c_str();
  }

  void expect_success(const char *function, int status) const {
    if (status == 0) return;
    auto name = nvrtc.find<const char *(int)>("nvrtcGetErrorString")(status);
    auto words = handle == nullptr ? "" : log();
    throw std::runtime_error(std::string(function) + ": " + (name ? name : "an unknown error") + (words.empty() ? "" : ": ") + words);
  }
};
}  // namespace

std::vector<char> compiled_by_nvrtc(const char *path, const char *source, std::vector<const char *> options) {
  Nvrtc nvrtc(path);
  Program program{nvrtc};
  using Create = int(void **, const char *, const char *, int, const char *const *, const char *const *);
  program.expect_success("nvrtcCreateProgram", nvrtc.find<Create>("nvrtcCreateProgram")(&program.handle, source, "kernel.cu", 0, nullptr, nullptr));
  auto compile = nvrtc.find<int(void *, int, const char *const *)>("nvrtcCompileProgram");
  program.expect_success("nvrtcCompileProgram", compile(program.handle, (int)options.size(), options.data()));
  size_t size = 0;
  program.expect_success("nvrtcGetCUBINSize", nvrtc.find<int(void *, size_t *)>("nvrtcGetCUBINSize")(program.handle, &size));
  std::vector<char> cubin(size);
  program.expect_success("nvrtcGetCUBIN", nvrtc.find<int(void *, char *)>("nvrtcGetCUBIN")(program.handle, cubin.data()));
  if (size < 4 || std::memcmp(cubin.data(), "\x7f" "ELF", 4) != 0) throw std::runtime_error("nvrtcGetCUBIN gave no machine code");
  return cubin;
}

extern "C" {

// Loads a library for those that will look for it by its bare name. As PyTorch does, its functions are kept from other libraries.
int kiln_load_library(const char *path) {
  return guarded([&] {
    if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(dlerror());
  });
}

// The version of the libnvrtc at `path`, as CUDA counts: 13000 is 13.0. newest: the newest GPU that it compiles for, 90 is sm_90.
int kiln_nvrtc(const char *path, int64_t *version, int64_t *newest) {
  return guarded([&] {
    Nvrtc nvrtc(path);
    Program none{nvrtc};
    int major = 0, minor = 0, count = 0;
    none.expect_success("nvrtcVersion", nvrtc.find<int(int *, int *)>("nvrtcVersion")(&major, &minor));
    *version = major * 1000 + minor * 10;
    none.expect_success("nvrtcGetNumSupportedArchs", nvrtc.find<int(int *)>("nvrtcGetNumSupportedArchs")(&count));
    std::vector<int> all(count);
    none.expect_success("nvrtcGetSupportedArchs", nvrtc.find<int(int *)>("nvrtcGetSupportedArchs")(all.data()));
    *newest = 0;
    for (int one : all) *newest = one > *newest ? one : *newest;
  });
}

// Compiles `source` with one option; the size of the machine code.
int kiln_nvrtc_compile(const char *path, const char *source, const char *option, int64_t *cubin_bytes) {
  return guarded([&] { *cubin_bytes = (int64_t)compiled_by_nvrtc(path, source, {option}).size(); });
}
}
