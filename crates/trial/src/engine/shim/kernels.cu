// Kernels of kiln's own, compiled by NVRTC when a trial wants them (and on the CPU, to test them): where libtorch's kernels read or write a large
// buffer several times, or copy it to f32, these pass over it once. No header is needed. KIND names the numbers: 0 f32, 1 f16, 2 bf16; all arithmetic
// is in f32.
//
// All rows begin at multiples of 16 bytes, and buffers are read and written 16 bytes at a time.

#ifdef __CUDACC_RTC__
// With at most so many threads in a block.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
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
  for (int at = threadIdx.x; at < packs; at += blockDim.x) {
    Pack pack = ((const Pack *)row)[at];
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
  for (int at = threadIdx.x; at < packs; at += blockDim.x) {
    Pack pack = ((const Pack *)row)[at];
#pragma unroll
    for (int one = 0; one < PER_PACK; one++) pack.each[one] = narrow(of_one(wide(pack.each[one]), at * PER_PACK + one));
    ((Pack *)to)[at] = pack;
  }
  for (int at = packs * PER_PACK + threadIdx.x; at < columns; at += blockDim.x) to[at] = narrow(at < classes ? of_one(wide(row[at]), at) : 0.0f);
}

// Batch norm of a convolution's output, channels side by side: [rows, channels], rows are images × places ------------------------------------

// Threads of a block along the channels, PER_PACK each; the others take other rows.
#define ACROSS 8
#define DOWN 32
#define THREADS (ACROSS * DOWN)

// Adds up a block's sums of each channel over its threads of other rows, and over the blocks of other rows: the last block of a column to finish
// has all. `parts` [blocks down, Count, channels], `finished` [blocks across], which are 0 before and afterwards. Returns whether this is a
// thread of the last block that has the sums of a channel in `sums`; channel is that of `one`.
template <int Count>
__device__ bool add_up_channels(float (&sums)[Count][PER_PACK], float *parts, unsigned *finished, int channels, float (&all)[Count], int &channel) {
  __shared__ float shared[Count][DOWN][ACROSS * PER_PACK + 1];
  __shared__ bool is_last;
  int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS, wide_of_block = ACROSS * PER_PACK, first = blockIdx.x * wide_of_block;
#pragma unroll
  for (int of = 0; of < Count; of++)
#pragma unroll
    for (int one = 0; one < PER_PACK; one++) shared[of][down][across * PER_PACK + one] = sums[of][one];
  __syncthreads();
  for (int at = threadIdx.x; at < Count * wide_of_block; at += blockDim.x) {
    int of = at / wide_of_block, column = at % wide_of_block;
    float sum = 0.0f;
    for (int row = 0; row < DOWN; row++) sum += shared[of][row][column];
    if (first + column < channels) parts[((long long)blockIdx.y * Count + of) * channels + first + column] = sum;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&finished[blockIdx.x], 1u) == gridDim.y - 1;
  __syncthreads();
  if (!is_last) return false;
  if (threadIdx.x == 0) finished[blockIdx.x] = 0;
  __threadfence();
  // All threads take part: each adds some blocks' parts of one channel, then the first of them adds those.
  int helpers = blockDim.x / wide_of_block, column = threadIdx.x % wide_of_block, helper = threadIdx.x / wide_of_block;
  channel = first + column;
#pragma unroll
  for (int of = 0; of < Count; of++) all[of] = 0.0f;
  if (helper < helpers && channel < channels) {
#pragma unroll 16
    for (int block = helper; block < gridDim.y; block += helpers)
#pragma unroll
      for (int of = 0; of < Count; of++) all[of] += __ldcg(&parts[((long long)block * Count + of) * channels + channel]);
  }
#pragma unroll
  for (int of = 0; of < Count; of++)
    if (helper < DOWN) shared[of][helper][column] = all[of];
  __syncthreads();
#pragma unroll
  for (int of = 0; of < Count; of++) {
    all[of] = 0.0f;
    for (int other = 0; other < helpers; other++) all[of] += shared[of][other][column];
  }
  return helper == 0 && channel < channels;
}

// Mean and reciprocal deviation of each channel, and the running mean and variance, moved by `momentum`.
KERNEL(THREADS)
norm_statistics(const Number *__restrict__ x, int rows, int channels, float *__restrict__ parts, unsigned *__restrict__ finished, float epsilon,
                float momentum, float *__restrict__ mean, float *__restrict__ inverse, float *__restrict__ running_mean,
                float *__restrict__ running_variance) {
  int pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS, packs = channels / PER_PACK;
  float sums[2][PER_PACK] = {};
  if (pack < packs) {
    // Relative to the first row: squares of numbers far from 0 would lose the variance.
    Pack first = ((const Pack *)x)[pack];
#pragma unroll 4
    for (int row = blockIdx.y * DOWN + threadIdx.x / ACROSS; row < rows; row += gridDim.y * DOWN) {
      Pack read = ((const Pack *)x)[(long long)row * packs + pack];
#pragma unroll
      for (int one = 0; one < PER_PACK; one++) {
        float away = wide(read.each[one]) - wide(first.each[one]);
        sums[0][one] += away;
        sums[1][one] += away * away;
      }
    }
  }
  float all[2];
  int channel;
  if (!add_up_channels(sums, parts, finished, channels, all, channel)) return;
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

// The numbers of a pack of channels.
struct Channels {
  float mean[PER_PACK], scale[PER_PACK], offset[PER_PACK];

  __device__ Channels(const float *means, const float *inverse, const float *gain, const float *shift, int pack) {
#pragma unroll
    for (int one = 0; one < PER_PACK; one++) {
      int channel = pack * PER_PACK + one;
      mean[one] = means[channel];
      scale[one] = inverse[channel] * gain[channel];
      offset[one] = shift[channel] - means[channel] * scale[one];
    }
  }

  __device__ float normed(const Pack &x, int one) const { return wide(x.each[one]) * scale[one] + offset[one]; }

  __device__ float passed(int rectifier, const Pack &gradient, const Pack &output, const Pack &x, int one) const {
    float of_output = wide(gradient.each[one]);
    if (rectifier == BY_OUTPUT) return through(of_output, wide(output.each[one]));
    if (rectifier == BY_NORM) return through(of_output, wide(narrow(normed(x, one))));
    return of_output;
  }
};

// relu((x - mean) * inverse * gain + shift + residual), the last two where asked for; residual may be null.
KERNEL(THREADS)
norm_apply(const Number *__restrict__ x, const Number *__restrict__ residual, int relu, int rows, int channels, const float *__restrict__ mean,
           const float *__restrict__ inverse, const float *__restrict__ gain, const float *__restrict__ shift, Number *__restrict__ out) {
  int pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS, packs = channels / PER_PACK;
  if (pack >= packs) return;
  Channels of(mean, inverse, gain, shift, pack);
  for (int row = blockIdx.y * DOWN + threadIdx.x / ACROSS; row < rows; row += gridDim.y * DOWN) {
    long long at = (long long)row * packs + pack;
    Pack read = ((const Pack *)x)[at], added = {};
    if (residual) added = ((const Pack *)residual)[at];
#pragma unroll
    for (int one = 0; one < PER_PACK; one++) {
      float y = of.normed(read, one);
      if (residual) y += wide(added.each[one]);
      read.each[one] = narrow(relu && y <= 0.0f ? 0.0f : y);
    }
    ((Pack *)out)[at] = read;
  }
}

// Gradients of shift and gain: sums over the rows of what comes through the rectifier, and of that times the normed numbers. `output` is read
// BY_OUTPUT alone.
KERNEL(THREADS)
norm_backward_sums(const Number *__restrict__ gradient, const Number *__restrict__ output, const Number *__restrict__ x, int rectifier, int rows,
                   int channels, float *__restrict__ parts, unsigned *__restrict__ finished, const float *__restrict__ mean,
                   const float *__restrict__ inverse, const float *__restrict__ gain, const float *__restrict__ shift, float *__restrict__ of_shift,
                   float *__restrict__ of_gain) {
  int pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS, packs = channels / PER_PACK;
  float sums[2][PER_PACK] = {};
  if (pack < packs) {
    Channels of(mean, inverse, gain, shift, pack);
#pragma unroll 2
    for (int row = blockIdx.y * DOWN + threadIdx.x / ACROSS; row < rows; row += gridDim.y * DOWN) {
      long long at = (long long)row * packs + pack;
      Pack of_row = ((const Pack *)gradient)[at], read = ((const Pack *)x)[at], made = {};
      if (rectifier == BY_OUTPUT) made = ((const Pack *)output)[at];
#pragma unroll
      for (int one = 0; one < PER_PACK; one++) {
        float passed = of.passed(rectifier, of_row, made, read, one);
        sums[0][one] += passed;
        sums[1][one] += passed * (wide(read.each[one]) - of.mean[one]);
      }
    }
  }
  float all[2];
  int channel;
  if (!add_up_channels(sums, parts, finished, channels, all, channel)) return;
  of_shift[channel] = all[0];
  of_gain[channel] = all[1] * inverse[channel];
}

// Gradient of x, and to of_residual, if it is not null, what comes through the rectifier.
KERNEL(THREADS)
norm_backward_apply(const Number *__restrict__ gradient, const Number *__restrict__ output, const Number *__restrict__ x, int rectifier, int rows,
                    int channels, const float *__restrict__ mean, const float *__restrict__ inverse, const float *__restrict__ gain,
                    const float *__restrict__ shift, const float *__restrict__ of_shift, const float *__restrict__ of_gain, Number *__restrict__ of_x,
                    Number *__restrict__ of_residual) {
  int pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS, packs = channels / PER_PACK;
  if (pack >= packs) return;
  Channels of(mean, inverse, gain, shift, pack);
  // of_x = scale * passed + b * x + c for each channel.
  float b[PER_PACK], c[PER_PACK];
#pragma unroll
  for (int one = 0; one < PER_PACK; one++) {
    int channel = pack * PER_PACK + one;
    b[one] = -of.scale[one] * of_gain[channel] * inverse[channel] / rows;
    c[one] = -of.scale[one] * of_shift[channel] / rows - b[one] * of.mean[one];
  }
  for (int row = blockIdx.y * DOWN + threadIdx.x / ACROSS; row < rows; row += gridDim.y * DOWN) {
    long long at = (long long)row * packs + pack;
    Pack of_row = ((const Pack *)gradient)[at], read = ((const Pack *)x)[at], made = {};
    if (rectifier == BY_OUTPUT) made = ((const Pack *)output)[at];
#pragma unroll
    for (int one = 0; one < PER_PACK; one++) {
      float passed = of.passed(rectifier, of_row, made, read, one);
      of_row.each[one] = narrow(passed);
      read.each[one] = narrow(of.scale[one] * passed + b[one] * wide(read.each[one]) + c[one]);
    }
    ((Pack *)of_x)[at] = read;
    if (of_residual) ((Pack *)of_residual)[at] = of_row;
  }
}

// Sums of columns -------------------------------------------------------------------------------------------------------------------------

// Writes the sums that the blocks' threads have of each column to sums_of_columns [columns].
__device__ inline void give_column_sums(float (&sums)[1][PER_PACK], float *parts, unsigned *finished, int columns, float *sums_of_columns) {
  float all[1];
  int column;
  if (add_up_channels(sums, parts, finished, columns, all, column)) sums_of_columns[column] = all[0];
}

// Of each column of x [rows, columns], a multiple of PER_PACK; sums [columns].
KERNEL(THREADS)
column_sums(const Number *__restrict__ x, int rows, int columns, float *__restrict__ parts, unsigned *__restrict__ finished,
            float *__restrict__ sums_of_columns) {
  int pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS, packs = columns / PER_PACK;
  float sums[1][PER_PACK] = {};
  if (pack < packs)
#pragma unroll 4
    for (int row = blockIdx.y * DOWN + threadIdx.x / ACROSS; row < rows; row += gridDim.y * DOWN) {
      Pack read = ((const Pack *)x)[(long long)row * packs + pack];
#pragma unroll
      for (int one = 0; one < PER_PACK; one++) sums[0][one] += wide(read.each[one]);
    }
  give_column_sums(sums, parts, finished, columns, sums_of_columns);
}

// Queries, keys and values [batch, heads, time, head_width], all with these strides and a head's numbers side by side, as out [batch × time,
// 3 × heads × head_width], and its sums of columns. A head's width is a multiple of PER_PACK, as are the strides.
KERNEL(THREADS)
heads_side_by_side(const Number *__restrict__ queries, const Number *__restrict__ keys, const Number *__restrict__ values, long long of_batch,
                   long long of_head, long long of_time, int rows, int time, int heads, int head_width, float *__restrict__ parts,
                   unsigned *__restrict__ finished, Number *__restrict__ out, float *__restrict__ sums_of_columns) {
  int width = heads * head_width, columns = 3 * width, pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS, packs = columns / PER_PACK;
  float sums[1][PER_PACK] = {};
  if (pack < packs) {
    int part = pack * PER_PACK / width, column = pack * PER_PACK % width;
    const Number *from = (part == 0 ? queries : part == 1 ? keys : values) + column / head_width * of_head + column % head_width;
#pragma unroll 4
    for (int row = blockIdx.y * DOWN + threadIdx.x / ACROSS; row < rows; row += gridDim.y * DOWN) {
      Pack read = *(const Pack *)(from + row / time * of_batch + row % time * of_time);
      ((Pack *)out)[(long long)row * packs + pack] = read;
#pragma unroll
      for (int one = 0; one < PER_PACK; one++) sums[0][one] += wide(read.each[one]);
    }
  }
  give_column_sums(sums, parts, finished, columns, sums_of_columns);
}

// The Gaussian error linear unit --------------------------------------------------------------------------------------------------------------------

// The gradient of x [rows, columns], a multiple of PER_PACK, for the gradient of its unit, and sums_of_columns [columns] of that gradient
// before it is rounded.
KERNEL(THREADS)
gelu_backward(const Number *__restrict__ gradient, const Number *__restrict__ x, int rows, int columns, float *__restrict__ parts,
              unsigned *__restrict__ finished, Number *__restrict__ of_x, float *__restrict__ sums_of_columns) {
  const float ROOT_OF_HALF = 0.70710678118654752f, DENSITY_AT_0 = 0.39894228040143268f;
  int pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS, packs = columns / PER_PACK;
  float sums[1][PER_PACK] = {};
  if (pack < packs)
#pragma unroll 2
    for (int row = blockIdx.y * DOWN + threadIdx.x / ACROSS; row < rows; row += gridDim.y * DOWN) {
      long long at = (long long)row * packs + pack;
      Pack of_row = ((const Pack *)gradient)[at], read = ((const Pack *)x)[at];
#pragma unroll
      for (int one = 0; one < PER_PACK; one++) {
        float number = wide(read.each[one]);
        float probability = 0.5f * (1.0f + erff(number * ROOT_OF_HALF)), density = DENSITY_AT_0 * power(-0.5f * number * number);
        float found = wide(of_row.each[one]) * (probability + number * density);
        sums[0][one] += found;
        read.each[one] = narrow(found);
      }
      ((Pack *)of_x)[at] = read;
    }
  give_column_sums(sums, parts, finished, columns, sums_of_columns);
}

// Layer norm over the last axis ----------------------------------------------------------------------------------------------------------------

// Four numbers side by side, of f32 and of Number.
struct alignas(16) Four {
  float each[4];
};
struct alignas(4 * sizeof(Number)) NarrowFour {
  Number each[4];
};

// Of x + branch, or of x where branch is null: a block for each row [rows, width], a thread for each four columns. sum [rows, width] gets what is
// normed, where there is a branch; mean, inverse [rows], the latter of the deviation.
KERNEL(1024)
layer_norm_forward(const float *__restrict__ x, const Number *__restrict__ branch, const float *__restrict__ gain, const float *__restrict__ shift,
                   int width, float epsilon, float *__restrict__ sum, Number *__restrict__ out, float *__restrict__ mean,
                   float *__restrict__ inverse) {
  __shared__ float shared[2][1][32];
  bool is_there = threadIdx.x * 4 < width;
  long long at = (long long)blockIdx.x * (width / 4) + threadIdx.x;
  Four read = {}, scale = {}, offset = {};
  if (is_there) read = ((const Four *)x)[at], scale = ((const Four *)gain)[threadIdx.x], offset = ((const Four *)shift)[threadIdx.x];
  if (is_there && branch) {
    NarrowFour added = ((const NarrowFour *)branch)[at];
    for (int one = 0; one < 4; one++) read.each[one] += wide(added.each[one]);
    ((Four *)sum)[at] = read;
  }
  float total[1] = {read.each[0] + read.each[1] + read.each[2] + read.each[3]};
  add_up(total, shared[0]);
  float middle = total[0] / width;
  float squares[1] = {0.0f};
  if (is_there)
    for (float one : read.each) squares[0] += (one - middle) * (one - middle);
  add_up(squares, shared[1]);
  float reciprocal = rsqrtf(squares[0] / width + epsilon);
  if (threadIdx.x == 0) mean[blockIdx.x] = middle, inverse[blockIdx.x] = reciprocal;
  if (!is_there) return;
  NarrowFour made;
  for (int one = 0; one < 4; one++) made.each[one] = narrow((read.each[one] - middle) * reciprocal * scale.each[one] + offset.each[one]);
  ((NarrowFour *)out)[at] = made;
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
      float g = is_there ? wide(given.each[one]) : 0.0f;
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
      rounded.each[one] = narrow(made.each[one]);
      of_branch.each[one] += wide(rounded.each[one]);
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
