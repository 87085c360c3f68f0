// Versions and builds of the libraries in this process. Nothing is loaded here, and no device is touched.
#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/headeronly/version.h>

#include <cstdint>
#include <stdexcept>

#include "shim.h"

extern "C" {

// The libtorch whose headers this program was compiled with.
const char *kiln_headers_version() { return TORCH_VERSION; }

// libtorch's own description of its build: the text is in the library, not in its headers.
const char *kiln_libtorch_build() {
  static const std::string text = [] {
    try {
      return at::show_config();
    } catch (...) {
      return std::string();
    }
  }();
  return text.c_str();
}

// The number that a loaded library's own function answers. shape 0: size_t f(); 1: int f(int *), 0 is success;
// 2: int f(int which, int *) asked for 0, 1, 2 (major, minor, patch), packed as major × 10000 + minor × 100 + patch.
int kiln_library_version(const char *path, const char *function, int shape, int64_t *number) {
  return guarded([&] {
    auto library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error(std::string(path) + " is not loaded");
    auto found = dlsym(library, function);
    dlclose(library);  // Gives back what dlopen counted; the library stays loaded.
    if (found == nullptr) throw std::runtime_error(std::string(path) + " has no " + function);
    auto asked = [&](int status, int value) {
      if (status != 0) throw std::runtime_error(std::string(function) + " answered " + std::to_string(status));
      return (int64_t)value;
    };
    int value = 0;
    if (shape == 0) {
      *number = (int64_t)((size_t(*)())found)();
    } else if (shape == 1) {
      int status = ((int (*)(int *))found)(&value);
      *number = asked(status, value);
    } else {
      *number = 0;
      for (int which = 0; which < 3; which++) {
        int status = ((int (*)(int, int *))found)(which, &value);
        *number = *number * 100 + asked(status, value);
      }
    }
  });
}
}
