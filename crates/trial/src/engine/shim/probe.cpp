// Build of the loaded libtorch, and facts from the CUDA driver's own library. No CUDA header is needed: libtorch's CUDA
// part is queried through its hooks, the driver through the four functions of its public interface that are declared here.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "shim.h"

namespace {
// A function of the driver's library, or null.
template <typename Function>
Function find(void *library, const char *name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}
}  // namespace

extern "C" {

// versions: CUDA runtime, cuDNN; 0 where the build has none.
int kiln_cuda_build(int64_t *versions) {
  return guarded([&] {
    const auto &hooks = at::detail::getCUDAHooks();
    bool has_cuda = hooks.hasCUDART();
    versions[0] = has_cuda ? hooks.versionCUDART() : 0;
    versions[1] = has_cuda && hooks.compiledWithCuDNN() ? hooks.versionRuntimeCuDNN() : 0;
  });
}

// Starts libtorch's CUDA part and counts its devices; on failure, the error is the reason.
int kiln_cuda_devices(int64_t *count) {
  return guarded([&] {
    at::globalContext().lazyInitDevice(at::kCUDA);
    *count = at::detail::getCUDAHooks().getNumGPUs();
  });
}

// One device of the driver's library. The layout is that of `DriverDevice` in probe.rs.
struct KilnDriverDevice {
  char name[256];
  unsigned char uuid[16];
  int32_t major, minor;
};

// Starts the driver's library. Returns 1 where there is none, else 0 with the driver's own code in `code`, its name in kiln_error(),
// its newest CUDA in `version` and at most `room` devices.
int kiln_driver(int32_t *code, int32_t *version, KilnDriverDevice *devices, int32_t room, int32_t *count) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 1;
  auto init = find<int (*)(unsigned)>(library, "cuInit");
  auto name_of_code = find<int (*)(int, const char **)>(library, "cuGetErrorName");
  auto driver_version = find<int (*)(int *)>(library, "cuDriverGetVersion");
  auto device_count = find<int (*)(int *)>(library, "cuDeviceGetCount");
  auto get = find<int (*)(int *, int)>(library, "cuDeviceGet");
  auto name_of_device = find<int (*)(char *, int, int)>(library, "cuDeviceGetName");
  auto uuid = find<int (*)(unsigned char *, int)>(library, "cuDeviceGetUuid");
  if (auto newer = find<int (*)(unsigned char *, int)>(library, "cuDeviceGetUuid_v2")) uuid = newer;
  auto attribute = find<int (*)(int *, int, int)>(library, "cuDeviceGetAttribute");
  if (!init || !device_count || !get || !name_of_device || !uuid || !attribute) return 1;
  *code = init(0);
  const char *words = nullptr;
  if (name_of_code) name_of_code(*code, &words);
  kiln_failed(words ? words : "");
  *version = 0;
  if (driver_version) driver_version(version);
  *count = 0;
  int found = 0;
  if (*code != 0 || device_count(&found) != 0) return 0;
  for (int at = 0; at < found && *count < room; at++) {
    int device = 0;
    KilnDriverDevice *place = devices + *count;
    std::memset(place, 0, sizeof(*place));
    // 75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
    bool is_read = get(&device, at) == 0 && name_of_device(place->name, sizeof(place->name) - 1, device) == 0 &&
                   uuid(place->uuid, device) == 0 && attribute(&place->major, 75, device) == 0 &&
                   attribute(&place->minor, 76, device) == 0;
    if (is_read) ++*count;
  }
  return 0;
}
}
