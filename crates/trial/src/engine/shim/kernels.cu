// Kernels of kiln's own, compiled by NVRTC when a trial wants them (and on the CPU, to test them): where libtorch's kernels read or write a large
// buffer several times, or copy it to f32, these pass over it once. No header is needed. KIND names the numbers: 0 f32, 1 f16, 2 bf16; all arithmetic
// is in f32.
//
// All buffers begin at multiples of 16 bytes.

#ifdef __CUDACC_RTC__
// With at most so many threads in a block, and at least so many blocks on a multiprocessor at a time.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#endif

#if KIND == 0
typedef float Number;
#define PER_PACK 4
__device__ inline float wide(Number x) { return x; }
__device__ inline Number narrow(float x) { return x; }
__device__ inline float power(float x) { return expf(x); }
#else
typedef unsigned short Number;
#define PER_PACK 8
__device__ inline float power(float x) { return __expf(x); }
#if KIND == 1 && !defined(__CUDACC_RTC__)
inline float wide(Number x) { return c10::detail::fp16_ieee_to_fp32_value(x); }
inline Number narrow(float x) { return c10::detail::fp16_ieee_from_fp32_value(x); }
#elif KIND == 1
__device__ inline float wide(Number x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ inline Number narrow(float x) {
  Number y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#else
__device__ inline float wide(Number x) { return __uint_as_float((unsigned)x << 16); }
__device__ inline Number narrow(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // not a number
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;      // to the nearest, of two to the even one
}
#endif
#endif

#define LEAST __int_as_float(0xff800000)  // minus infinity

struct alignas(16) Pack {
  Number each[PER_PACK];
};
// Four numbers side by side, of f32 and of Number.
struct alignas(16) Four {
  float each[4];
};
struct alignas(4 * sizeof(Number)) NarrowFour {
#if KIND == 0
  float each[4];

  __device__ float operator[](int at) const { return each[at]; }
  __device__ void set(int at, float x) { each[at] = x; }
#else
  // Pairs take as many registers as they have words; single numbers would take one each.
  unsigned pairs[2];

  __device__ float operator[](int at) const { return wide((Number)(pairs[at / 2] >> at % 2 * 16)); }
  // One after the other from the first.
  __device__ void set(int at, float x) { pairs[at / 2] = at % 2 == 0 ? narrow(x) : pairs[at / 2] | (unsigned)narrow(x) << 16; }
#endif
};

// Sums of all threads of a block, for each of `Count` numbers; every thread gets them. `Count` times 32 floats of shared memory.
template <int Count>
__device__ void add_up(float (&sums)[Count], float (*shared)[32]) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
#pragma unroll
  for (int at = 0; at < Count; at++) {
    for (int far = 16; far > 0; far >>= 1) sums[at] += __shfl_xor_sync(0xffffffffu, sums[at], far);
    if (lane == 0) shared[at][warp] = sums[at];
  }
  __syncthreads();
#pragma unroll
  for (int at = 0; at < Count; at++) {
    sums[at] = lane < warps ? shared[at][lane] : 0.0f;
    for (int far = 16; far > 0; far >>= 1) sums[at] += __shfl_xor_sync(0xffffffffu, sums[at], far);
  }
}

// Cross entropy ---------------------------------------------------------------------------------------------------------------------------

#define IGNORED -100

// A block for each row of logits [rows, classes], whose rows are `stride` apart. losses [rows]: the cross entropy with a target of which
// `smoothing` is shared by all classes, 0 where it does not count; log_sums [rows]: the logarithm of the sum of the exponentials.
KERNEL(512)
loss_forward(const Number *__restrict__ logits, long long stride, int classes, const long long *targets, float smoothing, float *__restrict__ losses,
             float *__restrict__ log_sums) {
  __shared__ float shared[2][32], most_of_warps[32];
  const Number *row = logits + blockIdx.x * stride;
  float most = LEAST, sums[2] = {0.0f, 0.0f};  // of exponentials relative to `most`, and of the logits
  int packs = classes / PER_PACK;
  Pack next = {};
  if (threadIdx.x < packs) next = ((const Pack *)row)[threadIdx.x];
  for (int at = threadIdx.x; at < packs; at += blockDim.x) {
    Pack pack = next;
    if (at + blockDim.x < packs) next = ((const Pack *)row)[at + blockDim.x];
    float peak = wide(pack.each[0]);
#pragma unroll
    for (int one = 1; one < PER_PACK; one++) peak = fmaxf(peak, wide(pack.each[one]));
    if (peak > most) {
      sums[0] *= power(most - peak);
      most = peak;
    }
#pragma unroll
    for (int one = 0; one < PER_PACK; one++) {
      float x = wide(pack.each[one]);
      sums[0] += x == LEAST ? 0.0f : power(x - most);
      sums[1] += x;
    }
  }
  for (int at = packs * PER_PACK + threadIdx.x; at < classes; at += blockDim.x) {
    float x = wide(row[at]);
    if (x > most) {
      sums[0] *= power(most - x);
      most = x;
    }
    sums[0] += x == LEAST ? 0.0f : power(x - most);
    sums[1] += x;
  }
  float top = most;
  for (int far = 16; far > 0; far >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, far));
  if ((threadIdx.x & 31) == 0) most_of_warps[threadIdx.x >> 5] = top;
  __syncthreads();
  for (int warp = 0; warp < (blockDim.x + 31) >> 5; warp++) top = fmaxf(top, most_of_warps[warp]);
  sums[0] = sums[0] == 0.0f ? 0.0f : sums[0] * power(most - top);
  add_up(sums, shared);
  if (threadIdx.x != 0) return;
  // Not a number where a logit is none: fmaxf leaves those out, and the sum has them.
  float log_sum = top + logf(sums[0]);
  log_sums[blockIdx.x] = log_sum;
  long long target = targets[blockIdx.x];
  if (target == IGNORED) {
    losses[blockIdx.x] = 0.0f;
  } else {
    // A class that is none has no loss.
    bool is_class = target >= 0 && target < classes;
    float loss = is_class ? log_sum - wide(row[target]) : __int_as_float(0x7fffffff);
    losses[blockIdx.x] = smoothing == 0.0f ? loss : (1.0f - smoothing) * loss + smoothing * (log_sum - sums[1] / classes);
  }
}

// The gradient of the logits for the sum of the losses, whose gradient is *gradient: to `out`, which may be the logits themselves. Columns of
// `out` from `classes` up to `columns` are 0.
KERNEL(512)
loss_backward(const Number *logits, long long stride, int classes, const long long *targets, float smoothing, const float *log_sums,
              const float *gradient, Number *out, long long out_stride, int columns) {
  const Number *row = logits + blockIdx.x * stride;
  Number *to = out + blockIdx.x * out_stride;
  long long target = targets[blockIdx.x];
  bool counts = target != IGNORED;
  float log_sum = log_sums[blockIdx.x], share = *gradient, of_each = smoothing / classes;
  // The difference of a probability to 1 is small where a prediction is right.
  auto of_one = [&](float x, int at) {
    float p = at == target && smoothing == 0.0f ? expm1f(x - log_sum) : power(x - log_sum) - (at == target ? 1.0f - smoothing : 0.0f) - of_each;
    return counts ? p * share : 0.0f;
  };
  int packs = classes / PER_PACK;
  Pack next = {};
  if (threadIdx.x < packs) next = ((const Pack *)row)[threadIdx.x];
  for (int at = threadIdx.x; at < packs; at += blockDim.x) {
    Pack pack = next;
    if (at + blockDim.x < packs) next = ((const Pack *)row)[at + blockDim.x];
#pragma unroll
    for (int one = 0; one < PER_PACK; one++) pack.each[one] = narrow(of_one(wide(pack.each[one]), at * PER_PACK + one));
    ((Pack *)to)[at] = pack;
  }
  for (int at = packs * PER_PACK + threadIdx.x; at < columns; at += blockDim.x) to[at] = narrow(at < classes ? of_one(wide(row[at]), at) : 0.0f);
}

// Kernels over the rows of a matrix whose blocks have some columns each --------------------------------------------------------------------

// Threads of a block along the columns, four each; the others take other rows. A multiprocessor of any GPU holds two such blocks at a time.
#define ACROSS 16
#define DOWN 32
#define THREADS (ACROSS * DOWN)
#define COLUMNS (ACROSS * 4)

// Reads the rows of this thread, `Batch` at a time, so that so many reads are under way, and then uses them.
template <int Batch, typename Read, typename Use>
__device__ inline void each_row(int rows, Read read, Use use) {
  int step = gridDim.y * DOWN;
  for (int first = blockIdx.y * DOWN + threadIdx.x / ACROSS; first < rows; first += step * Batch) {
    decltype(read(0)) batch[Batch] = {};
#pragma unroll
    for (int at = 0; at < Batch; at++)
      if (first + at * step < rows) batch[at] = read(first + at * step);
#pragma unroll
    for (int at = 0; at < Batch; at++)
      if (first + at * step < rows) use(batch[at], first + at * step);
  }
}
// Of one matrix, or of two or three.
#define BATCH PER_PACK
#define SMALL_BATCH (PER_PACK / 2)

// Adds up a block's sums of each column over its threads of other rows, and over the blocks of other rows: the last block of a column to finish
// has all. `parts` [blocks down, Count, columns], `finished` [blocks across], which are 0 before and afterwards. Returns whether this is a
// thread of the last block that has the sums of a column in `all`.
template <int Count>
__device__ bool add_up_columns(float (&sums)[Count][4], float *parts, unsigned *finished, int columns, float (&all)[Count], int &column) {
  constexpr int WARPS = THREADS / 32, FOURS = Count * ACROSS, HELPERS = THREADS / FOURS;
  static_assert(WARPS * FOURS <= THREADS, "too little room for the sums of the warps");
  __shared__ Four shared[THREADS];
  __shared__ bool is_last;
  float *each = (float *)shared;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * COLUMNS;
#pragma unroll
  for (int of = 0; of < Count; of++) {
    Four sum;
#pragma unroll
    for (int one = 0; one < 4; one++) {
      for (int far = ACROSS; far < 32; far <<= 1) sums[of][one] += __shfl_xor_sync(0xffffffffu, sums[of][one], far);
      sum.each[one] = sums[of][one];
    }
    if (lane < ACROSS) shared[(warp * Count + of) * ACROSS + lane] = sum;
  }
  __syncthreads();
  if (threadIdx.x < Count * COLUMNS) {
    int of = threadIdx.x / COLUMNS, own = first + threadIdx.x % COLUMNS;
    float sum = 0.0f;
    for (int other = 0; other < WARPS; other++) sum += each[other * Count * COLUMNS + threadIdx.x];
    if (own < columns) parts[((long long)blockIdx.y * Count + of) * columns + own] = sum;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&finished[blockIdx.x], 1u) == gridDim.y - 1;
  __syncthreads();
  if (!is_last) return false;
  if (threadIdx.x == 0) finished[blockIdx.x] = 0;
  __threadfence();
  // All threads take part: each adds some blocks' parts of four columns, then the first of them add those.
  int four = threadIdx.x % FOURS, own = first + four % ACROSS * 4;
  Four sum = {};
  if (own < columns)
#pragma unroll 4
    for (int block = threadIdx.x / FOURS; block < gridDim.y; block += HELPERS) {
      float4 part = __ldcg((const float4 *)&parts[((long long)block * Count + four / ACROSS) * columns + own]);
      sum.each[0] += part.x, sum.each[1] += part.y, sum.each[2] += part.z, sum.each[3] += part.w;
    }
  shared[threadIdx.x] = sum;
  __syncthreads();
  column = first + threadIdx.x;
  if (threadIdx.x >= COLUMNS || column >= columns) return false;
#pragma unroll
  for (int of = 0; of < Count; of++) {
    all[of] = 0.0f;
    for (int helper = 0; helper < HELPERS; helper++) all[of] += each[(helper * Count + of) * COLUMNS + threadIdx.x];
  }
  return true;
}

// Which four columns this thread has, of all fours of a row.
__device__ inline int own_four() { return blockIdx.x * ACROSS + threadIdx.x % ACROSS; }

// Batch norm of a convolution's output, channels side by side: [rows, channels], rows are images × places ------------------------------------

// Mean and reciprocal deviation of each channel, and the running mean and variance, moved by `momentum`.
KERNEL(THREADS, 2)
norm_statistics(const Number *__restrict__ x, int rows, int channels, float *__restrict__ parts, unsigned *__restrict__ finished, float epsilon,
                float momentum, float *__restrict__ mean, float *__restrict__ inverse, float *__restrict__ running_mean,
                float *__restrict__ running_variance) {
  int four = own_four(), fours = channels / 4;
  float sums[2][4] = {};
  if (four < fours) {
    const NarrowFour *own = (const NarrowFour *)x + four;
    // Relative to the first row: squares of numbers far from 0 would lose the variance.
    NarrowFour first = own[0];
    each_row<BATCH>(
        rows, [&](int row) { return own[row * fours]; },
        [&](const NarrowFour &read, int) {
#pragma unroll
          for (int one = 0; one < 4; one++) {
            float away = read[one] - first[one];
            sums[0][one] += away;
            sums[1][one] += away * away;
          }
        });
  }
  float all[2];
  int channel;
  if (!add_up_columns(sums, parts, finished, channels, all, channel)) return;
  float away = all[0] / rows, variance = all[1] / rows - away * away, middle = wide(x[channel]) + away;
  if (variance < 0.0f) variance = 0.0f;  // what is no number stays none
  mean[channel] = middle;
  inverse[channel] = rsqrtf(variance + epsilon);
  running_mean[channel] += momentum * (middle - running_mean[channel]);
  float unbiased = rows > 1 ? variance * ((float)rows / (rows - 1)) : variance;
  running_variance[channel] += momentum * (unbiased - running_variance[channel]);
}

// What a rectifier lets through of the gradient of its output: of none all, else what the output, or the norm that it had, is above 0 for.
enum Rectifier { NO_RECTIFIER, BY_OUTPUT, BY_NORM };

__device__ inline float through(float gradient, float output) { return output <= 0.0f ? 0.0f : gradient; }

// The numbers of four channels.
struct Channels {
  float mean[4], scale[4], shift[4];

  __device__ Channels(const float *means, const float *inverse, const float *gain, const float *shifts, int four) {
#pragma unroll
    for (int one = 0; one < 4; one++) {
      int channel = four * 4 + one;
      mean[one] = means[channel];
      scale[one] = inverse[channel] * gain[channel];
      shift[one] = shifts[channel];
    }
  }

  __device__ float normed(const NarrowFour &x, int one) const { return (x[one] - mean[one]) * scale[one] + shift[one]; }
};

// relu((x - mean) * inverse * gain + shift + residual), the last two where asked for; residual may be null.
KERNEL(THREADS, 2)
norm_apply(const Number *__restrict__ x, const Number *__restrict__ residual, int relu, int rows, int channels, const float *__restrict__ mean,
           const float *__restrict__ inverse, const float *__restrict__ gain, const float *__restrict__ shift, Number *__restrict__ out) {
  struct Read {
    NarrowFour x, residual;
  };
  int four = own_four(), fours = channels / 4;
  if (four >= fours) return;
  Channels of(mean, inverse, gain, shift, four);
  each_row<SMALL_BATCH>(
      rows,
      [&](int row) {
        int at = row * fours + four;
        Read read = {((const NarrowFour *)x)[at], {}};
        if (residual) read.residual = ((const NarrowFour *)residual)[at];
        return read;
      },
      [&](const Read &read, int row) {
        NarrowFour made;
#pragma unroll
        for (int one = 0; one < 4; one++) {
          float y = of.normed(read.x, one);
          if (residual) y += read.residual[one];
          made.set(one, relu && y <= 0.0f ? 0.0f : y);
        }
        ((NarrowFour *)out)[row * fours + four] = made;
      });
}

// What the backward pass of a batch norm reads of four channels of a row.
struct OfNorm {
  NarrowFour gradient, x, output;

  __device__ float passed(const Channels &of, int rectifier, int one) const {
    float of_output = gradient[one];
    if (rectifier == BY_OUTPUT) return through(of_output, output[one]);
    if (rectifier == BY_NORM) return through(of_output, wide(narrow(of.normed(x, one))));
    return of_output;
  }
};

// `output` is read BY_OUTPUT alone.
__device__ inline OfNorm read_of_norm(const Number *gradient, const Number *x, const Number *output, int rectifier, int at) {
  OfNorm read = {((const NarrowFour *)gradient)[at], ((const NarrowFour *)x)[at], {}};
  if (rectifier == BY_OUTPUT) read.output = ((const NarrowFour *)output)[at];
  return read;
}

// Gradients of shift and gain: sums over the rows of what comes through the rectifier, and of that times the normed numbers.
KERNEL(THREADS, 2)
norm_backward_sums(const Number *__restrict__ gradient, const Number *__restrict__ output, const Number *__restrict__ x, int rectifier, int rows,
                   int channels, float *__restrict__ parts, unsigned *__restrict__ finished, const float *__restrict__ mean,
                   const float *__restrict__ inverse, const float *__restrict__ gain, const float *__restrict__ shift, float *__restrict__ of_shift,
                   float *__restrict__ of_gain) {
  int four = own_four(), fours = channels / 4;
  float sums[2][4] = {};
  if (four < fours) {
    Channels of(mean, inverse, gain, shift, four);
    each_row<SMALL_BATCH>(
        rows, [&](int row) { return read_of_norm(gradient, x, output, rectifier, row * fours + four); },
        [&](const OfNorm &read, int) {
#pragma unroll
          for (int one = 0; one < 4; one++) {
            float passed = read.passed(of, rectifier, one);
            sums[0][one] += passed;
            sums[1][one] += passed * (read.x[one] - of.mean[one]);
          }
        });
  }
  float all[2];
  int channel;
  if (!add_up_columns(sums, parts, finished, channels, all, channel)) return;
  of_shift[channel] = all[0];
  of_gain[channel] = all[1] * inverse[channel];
}

// Gradient of x, and to of_residual, if it is not null, what comes through the rectifier.
KERNEL(THREADS, 2)
norm_backward_apply(const Number *__restrict__ gradient, const Number *__restrict__ output, const Number *__restrict__ x, int rectifier, int rows,
                    int channels, const float *__restrict__ mean, const float *__restrict__ inverse, const float *__restrict__ gain,
                    const float *__restrict__ shift, const float *__restrict__ of_shift, const float *__restrict__ of_gain, Number *__restrict__ of_x,
                    Number *__restrict__ of_residual) {
  int four = own_four(), fours = channels / 4;
  if (four >= fours) return;
  Channels of(mean, inverse, gain, shift, four);
  // of_x = scale * passed + b * (x - mean) + c for each channel.
  float b[4], c[4];
#pragma unroll
  for (int one = 0; one < 4; one++) {
    int channel = four * 4 + one;
    b[one] = -of.scale[one] * of_gain[channel] * inverse[channel] / rows;
    c[one] = -of.scale[one] * of_shift[channel] / rows;
  }
  each_row<SMALL_BATCH>(
      rows, [&](int row) { return read_of_norm(gradient, x, output, rectifier, row * fours + four); },
      [&](const OfNorm &read, int row) {
        NarrowFour made, let_through;
#pragma unroll
        for (int one = 0; one < 4; one++) {
          float passed = read.passed(of, rectifier, one);
          let_through.set(one, passed);
          made.set(one, of.scale[one] * passed + b[one] * (read.x[one] - of.mean[one]) + c[one]);
        }
        int at = row * fours + four;
        ((NarrowFour *)of_x)[at] = made;
        if (of_residual) ((NarrowFour *)of_residual)[at] = let_through;
      });
}

// Sums of columns -------------------------------------------------------------------------------------------------------------------------

// Writes the sums that the blocks' threads have of each column to sums_of_columns [columns].
__device__ inline void give_column_sums(float (&sums)[1][4], float *parts, unsigned *finished, int columns, float *sums_of_columns) {
  float all[1];
  int column;
  if (add_up_columns(sums, parts, finished, columns, all, column)) sums_of_columns[column] = all[0];
}

// Of each column of x [rows, columns], a multiple of 4; sums [columns].
KERNEL(THREADS, 2)
column_sums(const Number *__restrict__ x, int rows, int columns, float *__restrict__ parts, unsigned *__restrict__ finished,
            float *__restrict__ sums_of_columns) {
  int four = own_four(), fours = columns / 4;
  float sums[1][4] = {};
  if (four < fours)
    each_row<BATCH>(
        rows, [&](int row) { return ((const NarrowFour *)x)[row * fours + four]; },
        [&](const NarrowFour &read, int) {
#pragma unroll
          for (int one = 0; one < 4; one++) sums[0][one] += read[one];
        });
  give_column_sums(sums, parts, finished, columns, sums_of_columns);
}

// Queries, keys and values [batch, heads, time, head_width], all with these strides and a head's numbers side by side, as out [batch × time,
// 3 × heads × head_width], and its sums of columns. A head's width is a multiple of 4, as are the strides.
KERNEL(THREADS, 2)
heads_side_by_side(const Number *__restrict__ queries, const Number *__restrict__ keys, const Number *__restrict__ values, long long of_batch,
                   long long of_head, long long of_time, int rows, int time, int heads, int head_width, float *__restrict__ parts,
                   unsigned *__restrict__ finished, Number *__restrict__ out, float *__restrict__ sums_of_columns) {
  int width = heads * head_width, columns = 3 * width, four = own_four(), fours = columns / 4;
  float sums[1][4] = {};
  if (four < fours) {
    int part = four * 4 / width, column = four * 4 % width;
    const Number *from = (part == 0 ? queries : part == 1 ? keys : values) + column / head_width * of_head + column % head_width;
    each_row<BATCH>(
        rows, [&](int row) { return *(const NarrowFour *)(from + row / time * of_batch + row % time * of_time); },
        [&](const NarrowFour &read, int row) {
          ((NarrowFour *)out)[row * fours + four] = read;
#pragma unroll
          for (int one = 0; one < 4; one++) sums[0][one] += read[one];
        });
  }
  give_column_sums(sums, parts, finished, columns, sums_of_columns);
}

// The Gaussian error linear unit --------------------------------------------------------------------------------------------------------------------

// The gradient of x [rows, columns], a multiple of 4, for the gradient of its unit, and sums_of_columns [columns] of that gradient before it
// is rounded.
KERNEL(THREADS, 2)
gelu_backward(const Number *__restrict__ gradient, const Number *__restrict__ x, int rows, int columns, float *__restrict__ parts,
              unsigned *__restrict__ finished, Number *__restrict__ of_x, float *__restrict__ sums_of_columns) {
  const float ROOT_OF_HALF = 0.70710678118654752f, DENSITY_AT_0 = 0.39894228040143268f;
  struct Read {
    NarrowFour gradient, x;
  };
  int four = own_four(), fours = columns / 4;
  float sums[1][4] = {};
  if (four < fours)
    each_row<SMALL_BATCH>(
        rows,
        [&](int row) {
          int at = row * fours + four;
          return Read{((const NarrowFour *)gradient)[at], ((const NarrowFour *)x)[at]};
        },
        [&](const Read &read, int row) {
          NarrowFour made;
#pragma unroll
          for (int one = 0; one < 4; one++) {
            float number = read.x[one];
            float probability = 0.5f * (1.0f + erff(number * ROOT_OF_HALF)), density = DENSITY_AT_0 * power(-0.5f * number * number);
            float found = read.gradient[one] * (probability + number * density);
            sums[0][one] += found;
            made.set(one, found);
          }
          ((NarrowFour *)of_x)[row * fours + four] = made;
        });
  give_column_sums(sums, parts, finished, columns, sums_of_columns);
}

// Layer norm over the last axis ----------------------------------------------------------------------------------------------------------------

// Of x + branch, or of x where branch is null: a block for some of the rows [rows, width], a thread for each four columns. sum [rows, width] gets
// what is normed, where there is a branch; mean, inverse [rows], the latter of the deviation.
KERNEL(1024)
layer_norm_forward(const float *__restrict__ x, const Number *__restrict__ branch, const float *__restrict__ gain, const float *__restrict__ shift,
                   int rows, int width, float epsilon, float *__restrict__ sum, Number *__restrict__ out, float *__restrict__ mean,
                   float *__restrict__ inverse) {
  __shared__ float shared[2][1][32];
  bool is_there = threadIdx.x * 4 < width;
  int quarter = width / 4;
  Four next = {}, scale = {}, offset = {};
  NarrowFour added = {};
  if (is_there) scale = ((const Four *)gain)[threadIdx.x], offset = ((const Four *)shift)[threadIdx.x];
  auto fetch = [&](int row) {
    if (row >= rows || !is_there) return;
    long long at = (long long)row * quarter + threadIdx.x;
    next = ((const Four *)x)[at];
    if (branch) added = ((const NarrowFour *)branch)[at];
  };
  fetch(blockIdx.x);
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    long long at = (long long)row * quarter + threadIdx.x;
    Four read = next;
    if (is_there && branch) {
      for (int one = 0; one < 4; one++) read.each[one] += added[one];
      ((Four *)sum)[at] = read;
    }
    fetch(row + gridDim.x);
    float total[1] = {read.each[0] + read.each[1] + read.each[2] + read.each[3]};
    add_up(total, shared[0]);
    float middle = total[0] / width;
    float squares[1] = {0.0f};
    if (is_there)
      for (float one : read.each) squares[0] += (one - middle) * (one - middle);
    add_up(squares, shared[1]);
    float reciprocal = rsqrtf(squares[0] / width + epsilon);
    if (threadIdx.x == 0) mean[row] = middle, inverse[row] = reciprocal;
    if (!is_there) continue;
    NarrowFour made;
    for (int one = 0; one < 4; one++) made.set(one, (read.each[one] - middle) * reciprocal * scale.each[one] + offset.each[one]);
    ((NarrowFour *)out)[at] = made;
  }
}

// The gradient of x, and what else x has got, if `added` is not null; `narrowed`, if it is not null, gets the same. parts [blocks, 3, width]: the
// gradients of gain and shift and the sums of the rows of `narrowed`, to be added up over the blocks; without `narrowed` [blocks, 2, width].
KERNEL(1024)
layer_norm_backward(const Number *__restrict__ gradient, const float *__restrict__ x, const float *__restrict__ added, const float *__restrict__ mean,
                    const float *__restrict__ inverse, const float *__restrict__ gain, int rows, int width, float *__restrict__ of_x,
                    Number *__restrict__ narrowed, float *__restrict__ parts) {
  __shared__ float shared[2][2][32];
  bool is_there = threadIdx.x * 4 < width;
  Four scale = {}, of_gain = {}, of_shift = {}, of_branch = {};
  if (is_there) scale = ((const Four *)gain)[threadIdx.x];
  int quarter = width / 4, turn = 0;
  Four read = {}, other = {};
  NarrowFour given = {};
  float middle = 0.0f, reciprocal = 0.0f;
  auto fetch = [&](int row) {
    if (row >= rows) return;
    long long at = (long long)row * quarter + threadIdx.x;
    middle = mean[row], reciprocal = inverse[row];
    if (is_there) read = ((const Four *)x)[at], given = ((const NarrowFour *)gradient)[at];
    if (is_there && added) other = ((const Four *)added)[at];
  };
  fetch(blockIdx.x);
  for (int row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    float normed[4], scaled[4], sums[2] = {0.0f, 0.0f}, kept = reciprocal;
    Four made = other;
    for (int one = 0; one < 4; one++) {
      float g = is_there ? given[one] : 0.0f;
      normed[one] = is_there ? (read.each[one] - middle) * reciprocal : 0.0f;
      scaled[one] = g * scale.each[one];
      sums[0] += scaled[one];
      sums[1] += scaled[one] * normed[one];
      of_gain.each[one] += g * normed[one];
      of_shift.each[one] += g;
    }
    fetch(row + gridDim.x);
    add_up(sums, shared[turn]);
    if (!is_there) continue;
    NarrowFour rounded;
    for (int one = 0; one < 4; one++) {
      made.each[one] += kept * (scaled[one] - sums[0] / width - normed[one] * sums[1] / width);
      rounded.set(one, made.each[one]);
      of_branch.each[one] += rounded[one];
    }
    long long at = (long long)row * quarter + threadIdx.x;
    ((Four *)of_x)[at] = made;
    if (narrowed) ((NarrowFour *)narrowed)[at] = rounded;
  }
  if (!is_there) return;
  Four *to = (Four *)parts + (long long)blockIdx.x * (narrowed ? 3 : 2) * quarter + threadIdx.x;
  to[0] = of_gain, to[quarter] = of_shift;
  if (narrowed) to[2 * quarter] = of_branch;
}

// Adds up parts [count, columns] over their rows: a block for each 32 columns, of 32 × 32 threads. sums [columns].
KERNEL(1024)
sums_of_parts(const float *__restrict__ parts, int count, int columns, float *__restrict__ sums) {
  __shared__ float shared[32][33];
  int across = threadIdx.x & 31, down = threadIdx.x >> 5, column = blockIdx.x * 32 + across;
  float sum = 0.0f;
  if (column < columns)
#pragma unroll 8
    for (int row = down; row < count; row += 32) sum += parts[(long long)row * columns + column];
  shared[down][across] = sum;
  __syncthreads();
  // A warp now has the parts of one column.
  sum = shared[across][down];
  for (int far = 16; far > 0; far >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, far);
  column = blockIdx.x * 32 + down;
  if (across == 0 && column < columns) sums[column] = sum;
}
