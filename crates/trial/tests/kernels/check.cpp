// Runs each kernel of kernels.cu at sizes that exercise all of its loops, and compares it with plain loops in double. Built with a sanitizer
// it ends with a fault where threads race or leave their buffers. Every block is a thread of the process, so that nothing orders two blocks but
// what CUDA has for that.
#include "kernels_on_cpu.cpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace kernels_on_cpu;

int faults = 0;
const char *KINDS[] = {"f32", "f16", "bf16"};

// Numbers of a kind in memory of just their size.
struct Numbers {
  int kind;
  size_t count;
  char *memory = nullptr;

  Numbers(int kind, size_t count) : kind(kind), count(count) {
    if (posix_memalign((void **)&memory, 16, count * size())) std::abort();
    std::memset(memory, 0xff, count * size());  // not a number
  }
  Numbers(const Numbers &) = delete;
  ~Numbers() { std::free(memory); }

  size_t size() const { return kind == 0 ? 4 : 2; }
  float operator[](size_t at) const {
    if (kind == 0) return ((float *)memory)[at];
    auto bits = ((unsigned short *)memory)[at];
    return kind == 1 ? of_f16::wide(bits) : of_bf16::wide(bits);
  }
  void set(size_t at, float x) {
    if (kind == 0) ((float *)memory)[at] = x;
    if (kind == 1) ((unsigned short *)memory)[at] = of_f16::narrow(x);
    if (kind == 2) ((unsigned short *)memory)[at] = of_bf16::narrow(x);
  }
};

// Draws numbers around `middle`.
struct Draw {
  unsigned long long state = 88172645463325252ull;

  double next() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (double)(state >> 11) / (1ull << 53);
  }
  void fill(Numbers &numbers, double middle = 0.0, double width = 2.0) {
    for (size_t at = 0; at < numbers.count; at++) numbers.set(at, (float)(middle + width * (next() - 0.5)));
  }
};

template <typename Argument>
auto passed(const Argument &argument) {
  if constexpr (std::is_same_v<Argument, Numbers>)
    return (void *)argument.memory;
  else
    return argument;
}

template <typename... Arguments>
void start(Kernel kernel, int kind, unsigned across, unsigned down, unsigned threads, const Arguments &...arguments) {
  auto function = (void (*)(decltype(passed(arguments))...))find((int)kernel, kind);
  const std::function<void()> call = [&] { function(passed(arguments)...); };
  // One block after the other, the last one first; that this thread sees one end gives no order to the next.
  std::atomic<unsigned> left{across * down};
  std::vector<std::thread> blocks;
  for (unsigned block = across * down; block-- > 0;) {
    blocks.emplace_back([&, block] {
      run_block({block % across, block / across, 0}, {across, down, 1}, threads, call);
      left.store(block, std::memory_order_relaxed);
    });
    while (left.load(std::memory_order_relaxed) != block) usleep(100);
  }
  for (auto &block : blocks) block.join();
}

// Compares what a kernel made with what it should have, up to `share` of the largest number.
struct Expected {
  const char *what;
  const Numbers &found;
  std::vector<double> numbers;

  Expected(const char *what, const Numbers &found) : what(what), found(found), numbers(found.count) {}
  double &operator[](size_t at) { return numbers[at]; }

  void check() const {
    double largest = 1e-3, worst = 0.0, share = found.kind == 0 ? 2e-5 : found.kind == 1 ? 2e-3 : 1e-2;
    for (auto number : numbers) largest = std::max(largest, std::abs(number));
    for (size_t at = 0; at < numbers.size(); at++) {
      double away = std::abs(found[at] - numbers[at]);
      if (!(away <= worst)) worst = away;
    }
    if (worst <= share * largest) return;
    std::printf("%s: %g away, of %g\n", what, worst, largest);
    faults++;
  }
};

constexpr int FOURS_OF_BLOCK = 16, THREADS_OF_BLOCK = 512;

unsigned pack_of(int kind) { return kind == 0 ? 4 : 8; }
unsigned across_of(int columns) { return (columns / 4 + FOURS_OF_BLOCK - 1) / FOURS_OF_BLOCK; }

struct Counters {
  std::vector<unsigned> finished = std::vector<unsigned>(64);

  unsigned *all() { return finished.data(); }
  ~Counters() {
    if (std::any_of(finished.begin(), finished.end(), [](unsigned one) { return one != 0; })) {
      std::printf("a counter of blocks is not 0 afterwards\n");
      faults++;
    }
  }
};

Draw draw;

void column_sums(int kind, int rows, int columns, unsigned down) {
  Numbers x(kind, (size_t)rows * columns), sums(0, columns), parts(0, (size_t)down * columns);
  Counters counters;
  draw.fill(x, 0.5);
  start(Kernel::column_sums, kind, across_of(columns), down, THREADS_OF_BLOCK, x, rows, columns, parts, counters.all(), sums);
  Expected expected("column_sums", sums);
  for (size_t at = 0; at < x.count; at++) expected[at % columns] += x[at];
  expected.check();
}

void heads_side_by_side(int kind, int batch, int heads, int time, int width, unsigned down) {
  // Queries, keys and values [batch, time, heads, width] side by side, seen as [batch, heads, time, width].
  int inner = heads * width, rows = batch * time, columns = 3 * inner;
  Numbers parts_of[3] = {{kind, (size_t)rows * inner}, {kind, (size_t)rows * inner}, {kind, (size_t)rows * inner}};
  Numbers out(kind, (size_t)rows * columns), sums(0, columns), parts(0, (size_t)down * columns);
  Counters counters;
  for (auto &part : parts_of) draw.fill(part, 0.5);
  start(Kernel::heads_side_by_side, kind, across_of(columns), down, THREADS_OF_BLOCK, parts_of[0], parts_of[1], parts_of[2], (long long)time * inner,
        (long long)width, (long long)inner, rows, time, heads, width, parts, counters.all(), out, sums);
  Expected expected("heads_side_by_side", out), of_sums("heads_side_by_side, sums", sums);
  for (size_t row = 0; row < (size_t)rows; row++)
    for (int column = 0; column < columns; column++) {
      expected[row * columns + column] = parts_of[column / inner][row * inner + column % inner];
      of_sums[column] += expected[row * columns + column];
    }
  expected.check(), of_sums.check();
}

void gelu_backward(int kind, int rows, int columns, unsigned down) {
  Numbers gradient(kind, (size_t)rows * columns), x(kind, gradient.count), of_x(kind, gradient.count), sums(0, columns),
      parts(0, (size_t)down * columns);
  Counters counters;
  draw.fill(gradient), draw.fill(x, 0.0, 8.0);
  start(Kernel::gelu_backward, kind, across_of(columns), down, THREADS_OF_BLOCK, gradient, x, rows, columns, parts, counters.all(), of_x, sums);
  Expected expected("gelu_backward", of_x), of_sums("gelu_backward, sums", sums);
  for (size_t at = 0; at < x.count; at++) {
    double number = x[at],
           slope = 0.5 * (1.0 + std::erf(number * std::sqrt(0.5))) + number * std::exp(-0.5 * number * number) / std::sqrt(2.0 * M_PI);
    expected[at] = gradient[at] * slope;
    of_sums[at % columns] += expected[at];
  }
  expected.check(), of_sums.check();
}

enum { NO_RECTIFIER, BY_OUTPUT, BY_NORM };

void batch_norm(int kind, int rows, int channels, unsigned down, int rectifier, bool has_residual) {
  size_t count = (size_t)rows * channels;
  Numbers x(kind, count), residual(kind, has_residual ? count : 0), gain(0, channels), shift(0, channels), mean(0, channels), inverse(0, channels),
      running_mean(0, channels), running_variance(0, channels), parts(0, (size_t)down * 2 * channels), out(kind, count);
  Counters counters;
  auto across = across_of(channels);
  float epsilon = 1e-5f, momentum = 0.1f;
  draw.fill(x, 3.0), draw.fill(residual), draw.fill(gain, 1.0, 1.0), draw.fill(shift), draw.fill(running_mean), draw.fill(running_variance, 1.0, 1.0);
  Expected mean_to_be("norm_statistics, mean", mean), inverse_to_be("norm_statistics, inverse", inverse),
      running_mean_to_be("norm_statistics, running mean", running_mean),
      running_variance_to_be("norm_statistics, running variance", running_variance);
  for (size_t at = 0; at < count; at++) mean_to_be[at % channels] += x[at] / (double)rows;
  std::vector<double> variance(channels);
  for (size_t at = 0; at < count; at++) variance[at % channels] += std::pow(x[at] - mean_to_be[at % channels], 2) / rows;
  for (int channel = 0; channel < channels; channel++) {
    inverse_to_be[channel] = 1.0 / std::sqrt(variance[channel] + epsilon);
    running_mean_to_be[channel] = 0.9 * running_mean[channel] + 0.1 * mean_to_be[channel];
    running_variance_to_be[channel] = 0.9 * running_variance[channel] + 0.1 * variance[channel] * rows / std::max(rows - 1, 1);
  }
  start(Kernel::norm_statistics, kind, across, down, THREADS_OF_BLOCK, x, rows, channels, parts, counters.all(), epsilon, momentum, mean, inverse,
        running_mean, running_variance);
  mean_to_be.check(), inverse_to_be.check(), running_mean_to_be.check(), running_variance_to_be.check();

  auto added = has_residual ? residual.memory : nullptr;
  start(Kernel::norm_apply, kind, across, down, THREADS_OF_BLOCK, x, (void *)added, (int)(rectifier != NO_RECTIFIER), rows, channels, mean, inverse,
        gain, shift, out);
  Expected applied("norm_apply", out);
  auto normed = [&](size_t at) { return (x[at] - mean_to_be[at % channels]) * inverse_to_be[at % channels]; };
  for (size_t at = 0; at < count; at++) {
    double y = normed(at) * gain[at % channels] + shift[at % channels] + (has_residual ? residual[at] : 0.0);
    applied[at] = rectifier != NO_RECTIFIER && y <= 0.0 ? 0.0 : y;
  }
  applied.check();

  Numbers gradient(kind, count), of_x(kind, count), of_residual(kind, has_residual ? count : 0), of_shift(0, channels), of_gain(0, channels);
  draw.fill(gradient);
  start(Kernel::norm_backward_sums, kind, across, down, THREADS_OF_BLOCK, gradient, out, x, rectifier, rows, channels, parts, counters.all(), mean,
        inverse, gain, shift, of_shift, of_gain);
  start(Kernel::norm_backward_apply, kind, across, down, THREADS_OF_BLOCK, gradient, out, x, rectifier, rows, channels, mean, inverse, gain, shift,
        of_shift, of_gain, of_x, (void *)(has_residual ? of_residual.memory : nullptr));
  Expected shift_to_be("norm_backward_sums, shift", of_shift), gain_to_be("norm_backward_sums, gain", of_gain), x_to_be("norm_backward_apply", of_x),
      residual_to_be("norm_backward_apply, residual", of_residual);
  // What is let through depends on the rounded output, which is the kernel's.
  auto through = [&](size_t at) { return rectifier != NO_RECTIFIER && out[at] <= 0.0f ? 0.0 : gradient[at]; };
  for (size_t at = 0; at < count; at++) {
    shift_to_be[at % channels] += through(at);
    gain_to_be[at % channels] += through(at) * normed(at);
  }
  for (size_t at = 0; at < count; at++) {
    size_t channel = at % channels;
    x_to_be[at] = gain[channel] * inverse_to_be[channel] * (through(at) - shift_to_be[channel] / rows - normed(at) * gain_to_be[channel] / rows);
    if (has_residual) residual_to_be[at] = through(at);
  }
  shift_to_be.check(), gain_to_be.check(), x_to_be.check(), residual_to_be.check();
}

void layer_norm(int kind, int rows, int width, unsigned blocks, bool has_branch, bool has_added) {
  size_t count = (size_t)rows * width;
  unsigned threads = (width / 4 + 31) / 32 * 32;
  Numbers x(0, count), branch(kind, has_branch ? count : 0), gain(0, width), shift(0, width), sum(0, has_branch ? count : 0), out(kind, count),
      mean(0, rows), inverse(0, rows);
  float epsilon = 1e-5f;
  draw.fill(x, 1.0), draw.fill(branch), draw.fill(gain, 1.0, 1.0), draw.fill(shift);
  start(Kernel::layer_norm_forward, kind, blocks, 1, threads, x, (void *)(has_branch ? branch.memory : nullptr), gain, shift, rows, width, epsilon,
        (void *)(has_branch ? sum.memory : nullptr), out, mean, inverse);
  Expected sum_to_be("layer_norm_forward, sum", sum), out_to_be("layer_norm_forward", out), mean_to_be("layer_norm_forward, mean", mean),
      inverse_to_be("layer_norm_forward, inverse", inverse);
  std::vector<double> summed(count), normed(count);
  for (size_t at = 0; at < count; at++) {
    summed[at] = x[at] + (has_branch ? (double)branch[at] : 0.0);
    if (has_branch) sum_to_be[at] = summed[at];
    mean_to_be[at / width] += summed[at] / width;
  }
  std::vector<double> variance(rows);
  for (size_t at = 0; at < count; at++) variance[at / width] += std::pow(summed[at] - mean_to_be[at / width], 2) / width;
  for (int row = 0; row < rows; row++) inverse_to_be[row] = 1.0 / std::sqrt(variance[row] + epsilon);
  for (size_t at = 0; at < count; at++) {
    normed[at] = (summed[at] - mean_to_be[at / width]) * inverse_to_be[at / width];
    out_to_be[at] = normed[at] * gain[at % width] + shift[at % width];
  }
  sum_to_be.check(), out_to_be.check(), mean_to_be.check(), inverse_to_be.check();

  int all = has_branch ? 3 : 2;
  Numbers gradient(kind, count), added(0, has_added ? count : 0), of_x(0, count), narrowed(kind, has_branch ? count : 0),
      parts(0, (size_t)blocks * all * width), sums(0, (size_t)all * width);
  draw.fill(gradient), draw.fill(added);
  start(Kernel::layer_norm_backward, kind, blocks, 1, threads, gradient, (void *)(has_branch ? sum.memory : x.memory),
        (void *)(has_added ? added.memory : nullptr), mean, inverse, gain, rows, width, of_x, (void *)(has_branch ? narrowed.memory : nullptr),
        parts);
  start(Kernel::sums_of_parts, kind, (all * width + 31) / 32, 1, 1024, parts, (int)blocks, all * width, sums);
  Expected x_to_be("layer_norm_backward", of_x), narrowed_to_be("layer_norm_backward, narrowed", narrowed), sums_to_be("sums_of_parts", sums);
  for (int row = 0; row < rows; row++) {
    double of_mean = 0.0, of_normed = 0.0;
    for (int column = 0; column < width; column++) {
      size_t at = (size_t)row * width + column;
      of_mean += gradient[at] * gain[column] / width, of_normed += gradient[at] * gain[column] * normed[at] / width;
      sums_to_be[column] += gradient[at] * normed[at], sums_to_be[width + column] += gradient[at];
    }
    for (int column = 0; column < width; column++) {
      size_t at = (size_t)row * width + column;
      x_to_be[at] = inverse_to_be[row] * (gradient[at] * gain[column] - of_mean - normed[at] * of_normed) + (has_added ? (double)added[at] : 0.0);
      // Sums of what is rounded: by the kernel.
      if (has_branch) narrowed_to_be[at] = x_to_be[at], sums_to_be[2 * width + column] += narrowed[at];
    }
  }
  x_to_be.check(), narrowed_to_be.check(), sums_to_be.check();
}

void loss(int kind, int rows, int classes, int stride, double smoothing, bool reuse) {
  Numbers logits(kind, (size_t)rows * stride), losses(0, rows), log_sums(0, rows), gradient(0, 1), other(kind, reuse ? 0 : (size_t)rows * stride);
  std::vector<long long> targets(rows);
  draw.fill(logits, 0.0, 6.0), draw.fill(gradient, 1.0, 1.0);
  for (int row = 0; row < rows; row++) targets[row] = row == 1 ? -100 : (long long)(draw.next() * classes);
  unsigned threads = std::min(512u, std::max(32u, (classes / pack_of(kind) + 31) / 32 * 32));
  start(Kernel::loss_forward, kind, rows, 1, threads, logits, (long long)stride, classes, (const long long *)targets.data(), (float)smoothing, losses,
        log_sums);
  Expected losses_to_be("loss_forward", losses), sums_to_be("loss_forward, logarithms", log_sums);
  auto &out = reuse ? logits : other;
  Expected out_to_be("loss_backward", out);
  int columns = reuse ? classes : stride;
  for (int row = 0; row < rows; row++) {
    double sum = 0.0, of_logits = 0.0;
    auto of_row = [&](int at) { return (double)logits[(size_t)row * stride + at]; };
    for (int at = 0; at < classes; at++) sum += std::exp(of_row(at)), of_logits += of_row(at);
    sums_to_be[row] = std::log(sum);
    bool counts = targets[row] != -100;
    double of_target = counts ? std::log(sum) - of_row((int)targets[row]) : 0.0;
    losses_to_be[row] = counts ? (1.0 - smoothing) * of_target + smoothing * (std::log(sum) - of_logits / classes) : 0.0;
    for (int at = 0; at < columns; at++) {
      double of_one = std::exp(of_row(at)) / sum - (at == targets[row] ? 1.0 - smoothing : 0.0) - smoothing / classes;
      out_to_be[(size_t)row * stride + at] = counts && at < classes ? of_one * gradient[0] : 0.0;
    }
    // What lies between the rows of what is reused stays.
    for (int at = columns; at < stride; at++) out_to_be[(size_t)row * stride + at] = of_row(at);
  }
  start(Kernel::loss_backward, kind, rows, 1, threads, logits, (long long)stride, classes, (const long long *)targets.data(), (float)smoothing,
        log_sums, gradient, out, (long long)stride, columns);
  losses_to_be.check(), sums_to_be.check(), out_to_be.check();
}

void check(int kind) {
  column_sums(kind, 200, 72, 2);
  gelu_backward(kind, 100, 64, 2);
  batch_norm(kind, 100, 64, 2, NO_RECTIFIER, false);
  batch_norm(kind, 40, 8, 1, BY_NORM, false);
  batch_norm(kind, 70, 72, 2, BY_OUTPUT, true);
  heads_side_by_side(kind, 3, 4, 33, 16, 2);
  layer_norm(kind, 7, 132, 3, true, true);
  for (bool reuse : {false, true}) loss(kind, 3, 1003, 1008, reuse ? 0.0 : 0.1, reuse);
}

// At sizes that exercise all of their loops.
void check_more(int kind) {
  column_sums(kind, 1, 8, 1);
  batch_norm(kind, 1, 8, 1, NO_RECTIFIER, false);
  // More blocks than the last one has threads for a column.
  column_sums(kind, 1200, 72, 36);
  batch_norm(kind, 1200, 72, 20, BY_OUTPUT, true);
  batch_norm(kind, 700, 64, 2, BY_NORM, false);
  gelu_backward(kind, 1200, 8, 3);
  heads_side_by_side(kind, 2, 2, 5, 8, 1);
  layer_norm(kind, 7, 132, 3, false, false);
  for (auto [rows, width, blocks] : {std::tuple{1, 8, 1u}, {9, 768, 2u}, {20, 1024, 3u}, {3, 4096, 2u}})
    layer_norm(kind, rows, width, blocks, true, true);
  for (auto [classes, stride] : {std::pair{5, 8}, {16, 16}, {9000, 9008}}) loss(kind, 3, classes, stride, 0.1, false);
}

}  // namespace

// `check 0 2 more`: the kinds of numbers, and whether at more sizes, which takes long with ThreadSanitizer.
int main(int count, char **words) {
  std::vector<std::string> asked(words + 1, words + count);
  bool more = std::find(asked.begin(), asked.end(), "more") != asked.end();
  for (int kind = 0; kind < 3; kind++) {
    if (std::find(asked.begin(), asked.end(), std::to_string(kind)) == asked.end()) continue;
    int before = faults;
    check(kind);
    if (more) check_more(kind);
    std::printf("kernels in %s: %s\n", KINDS[kind], faults == before ? "ok" : "faults");
  }
  return faults == 0 ? 0 : 1;
}
