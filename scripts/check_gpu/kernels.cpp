// Adds up what a program starts on a GPU, by name: CUDA's driver loads this library where CUDA_INJECTION64_PATH names it. At its end the file
// $KILN_KERNELS gets a line for each kernel, copy and fill: how often, nanoseconds in all, name.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Total {
  uint64_t count = 0, nanoseconds = 0;
};

std::mutex &lock = *new std::mutex();
std::map<std::string, Total> &totals = *new std::map<std::string, Total>();
std::string &fault = *new std::string();

void expect_success(const char *what, CUptiResult status) {
  const char *words = "unknown";
  if (status == CUPTI_SUCCESS) return;
  cuptiGetResultString(status, &words);
  fault = std::string(what) + ": " + words;
}

void add(const std::string &name, uint64_t start, uint64_t end) {
  auto &total = totals[name];
  total.count++, total.nanoseconds += end - start;
}

void give_buffer(uint8_t **buffer, size_t *size, size_t *records) {
  *size = 8 << 20, *records = 0;
  *buffer = (uint8_t *)std::aligned_alloc(8, *size);
}

void take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t, size_t size) {
  std::lock_guard<std::mutex> guard(lock);
  CUpti_Activity *record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, size, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      auto kernel = (CUpti_ActivityKernel9 *)record;
      add(kernel->name, kernel->start, kernel->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      auto copy = (CUpti_ActivityMemcpy5 *)record;
      add("memcpy", copy->start, copy->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      auto fill = (CUpti_ActivityMemset4 *)record;
      add("memset", fill->start, fill->end);
    }
  }
  size_t lost = 0;
  if (cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS && lost > 0) fault = std::to_string(lost) + " records were lost";
  std::free(buffer);
}

std::string readable(const std::string &name) {
  int status = 0;
  auto made = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string found = status == 0 && made != nullptr ? made : name;
  std::free(made);
  return found;
}

void finish() {
  expect_success("cuptiActivityFlushAll", cuptiActivityFlushAll(1));
  auto path = std::getenv("KILN_KERNELS");
  auto file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) return;
  std::lock_guard<std::mutex> guard(lock);
  if (!fault.empty()) std::fprintf(file, "fault\t0\t%s\n", fault.c_str());
  for (auto &[name, total] : totals)
    std::fprintf(file, "%llu\t%llu\t%s\n", (unsigned long long)total.count, (unsigned long long)total.nanoseconds, readable(name).c_str());
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  expect_success("cuptiActivityRegisterCallbacks", cuptiActivityRegisterCallbacks(give_buffer, take_buffer));
  for (auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    expect_success("cuptiActivityEnable", cuptiActivityEnable(kind));
  std::atexit(finish);
  return 1;
}
