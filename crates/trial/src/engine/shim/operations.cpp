// Operations of the models as forward and backward pairs, built on libtorch's own kernels of both directions. What a pair keeps
// between the two is chosen here, no more than the backward kernel reads. `saved` is null when no gradient is wanted.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cuda_kernels.h"
#include "known_sums.h"
#include "narrow_weights.h"
#include "shim.h"

#if defined(__x86_64__) && defined(__linux__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

// The product of `x` and each of `count` rows of `rows`, of `length` values, plus `bias` if it is not null.
FOR_EACH_PROCESSOR void kiln_dots(const float *rows, const float *x, const float *bias, float *out, int64_t count, int64_t length) {
  typedef float Sixteen __attribute__((vector_size(64)));
  for (int64_t row = 0; row < count; row++) {
    auto values = rows + row * length;
    Sixteen one{}, other{};
    int64_t at = 0;
    for (; at + 32 <= length; at += 32) {
      Sixteen a, b, c, d;
      std::memcpy(&a, values + at, sizeof a), std::memcpy(&b, x + at, sizeof b);
      std::memcpy(&c, values + at + 16, sizeof c), std::memcpy(&d, x + at + 16, sizeof d);
      one += a * b, other += c * d;
    }
    one += other;
    float sum = bias == nullptr ? 0 : bias[row];
    for (int part = 0; part < 16; part++) sum += one[part];
    for (; at < length; at++) sum += values[at] * x[at];
    out[row] = sum;
  }
}

namespace {

// Columns that a product with weights [out, in] is given on CUDA: a few more than `out` where rows would not begin at multiples of 16 bytes. Tensor
// cores read such rows slowly (with GPT-2's 50,257 words an H200 makes 95 TFLOP/s, and 720 with 50,304), and the kernels of the loss need a copy.
// The weights are copied for it, which few rows do not repay.
int64_t padded_columns(const Tensor &rows, const Tensor &weight, at::ScalarType kind) {
  constexpr int64_t FEWEST_ROWS = 64, FEWEST_WEIGHTS = 1 << 20, WHOLE = 64;
  auto out = weight.size(0);
  bool is_worth_it = takes_cuda_branches(weight) && rows.size(0) >= FEWEST_ROWS && weight.numel() >= FEWEST_WEIGHTS;
  if (!is_worth_it || out % numbers_per_pack(kind) == 0) return out;
  return (out + WHOLE - 1) / WHOLE * WHOLE;
}

// rows [n, out] with `columns` columns, those after its own finite: they may lie in its memory already, between the rows.
Tensor with_columns(const Tensor &rows, int64_t columns) {
  auto count = rows.size(0), out = rows.size(1);
  if (out == columns) return rows;
  auto end = (rows.storage_offset() + count * columns) * (int64_t)rows.element_size();
  if (rows.stride(1) == 1 && rows.stride(0) == columns && end <= (int64_t)rows.storage().nbytes()) return rows.as_strided({count, columns}, {columns, 1});
  auto whole = at::empty({count, columns}, rows.options());
  whole.narrow(1, 0, out).copy_(rows);
  whole.narrow(1, out, columns - out).zero_();
  return whole;
}

// Sums of the columns of rows [n, out].
Tensor sums_of_columns(const Tensor &rows, at::ScalarType kind) {
  if (kind == at::kFloat && cuda_kernels::has_column_sums(rows)) return cuda_kernels::column_sums(rows);
  return at::sum(rows, {0}, false, kind);
}

struct SavedLinear : Saved {
  Tensor rows, weight;  // [n, in], [out and padding, in]; both in the dtype of the product
  std::vector<int64_t> input_sizes;
  int64_t out;
  at::ScalarType input_kind, weight_kind;
  bool has_bias;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto sums = has_bias ? known_sums(gradient) : Tensor();
    auto by_rows = with_columns(as_kind(gradient, weight.scalar_type()).reshape({-1, out}), weight.size(0));
    auto of_rows = product_as(input_kind, by_rows, weight.t()).view(input_sizes);
    auto of_weight = transposed_product(weight_kind, by_rows, rows).narrow(0, 0, out);
    if (!has_bias) return {of_rows, of_weight, Tensor()};
    return {of_rows, of_weight, sums.defined() ? as_kind(sums, weight_kind) : sums_of_columns(by_rows, weight_kind).narrow(0, 0, out)};
  }
};

// Several linear layers of one input, side by side.
struct SavedLinears : Saved {
  Tensor rows, weights;  // [n, in], [out of all, in]; both in the dtype of the product
  std::vector<int64_t> input_sizes, outs;
  at::ScalarType input_kind, weight_kind;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto by_rows = as_kind(gradient, weights.scalar_type()).reshape({-1, weights.size(0)});  // [n, out of all]
    std::vector<Tensor> found = {product_as(input_kind, by_rows, weights.t()).view(input_sizes)};
    for (auto &of_weight : transposed_product(weight_kind, by_rows, rows).split_with_sizes(outs, 0)) found.push_back(of_weight);
    return found;
  }
};

struct SavedRmsNorm : Saved {
  Tensor input, inverse, weight;  // [.., width], [.., 1] f32, [width]

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto of_output = as_kind(gradient, input.scalar_type());
    if (input.is_cuda()) {
      auto [of_input, of_weight] = at::_fused_rms_norm_backward(of_output.contiguous(), input, {input.size(-1)}, inverse, weight, {true, true});
      return {of_input, of_weight};
    }
    auto normed = input.mul(inverse);  // f32
    std::vector<int64_t> leading(input.dim() - 1);
    std::iota(leading.begin(), leading.end(), 0);
    auto of_weight = as_kind(of_output.mul(normed).sum(leading), weight.scalar_type());
    auto of_normed = of_output.mul(weight);
    auto along = of_normed.mul(normed).mean({-1}, /*keepdim=*/true);
    return {as_kind(normed.mul_(along).neg_().add_(of_normed).mul_(inverse), input.scalar_type()), of_weight};
  }
};

struct SavedEmbedding : Saved {
  Tensor indices;
  int64_t rows;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    return {at::embedding_dense_backward(gradient, indices, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false)};
  }
};

struct SavedLayerNorm : Saved {
  Tensor input, mean, deviation, weight, bias;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto [of_input, of_weight, of_bias] =
        at::native_layer_norm_backward(as_kind(gradient, input.scalar_type()), input, {input.size(-1)}, mean, deviation, weight,
                                       bias.defined() ? std::optional<Tensor>(bias) : std::nullopt, {true, true, bias.defined()});
    return {of_input, of_weight, of_bias};
  }
};

// The gradient of a sum as its norm gave it, and the same in the dtype of the branch that was added.
struct OfSum {
  Tensor whole, narrowed, sums;  // sums over the rows of `narrowed`
  uint32_t version = 0;

  void set(const cuda_kernels::LayerNormGradients &found) {
    whole = found.of_sum, narrowed = found.narrowed, sums = found.sums;
    version = whole._version();
  }

  // That of the branch, if this gradient is the one that was given, and nothing was added to it since; undefined where not.
  Tensor taken_for(const Tensor &gradient) {
    auto given = std::exchange(*this, OfSum());
    if (!given.whole.is_same(gradient) || gradient._version() != given.version) return {};
    know_sums(given.narrowed, given.sums);
    return given.narrowed;
  }
};

// In the dtype of the product that reads what it gives.
struct SavedLayerNormByKernel : Saved {
  cuda_kernels::LayerNorm norm;
  Tensor weight;
  at::ScalarType kind;
  std::shared_ptr<OfSum> of_sum;  // where a sum was normed whose branch is narrow

  SavedLayerNormByKernel(cuda_kernels::LayerNorm made, Tensor weight)
      : norm(std::move(made)), weight(std::move(weight)), kind(norm.normed.scalar_type()) {
    norm.normed.reset();
  }

  Role role() const override { return Role::NORM; }

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto found = cuda_kernels::layer_norm_backward(as_kind(gradient, kind).contiguous(), norm, weight, added, /*narrowed=*/of_sum != nullptr);
    if (of_sum != nullptr) of_sum->set(found);
    return {found.of_sum, found.of_gain, found.of_shift};
  }
};

struct SavedGelu : Saved {
  Tensor input;

  explicit SavedGelu(Tensor input) : input(std::move(input)) {}

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto of_output = as_kind(gradient, input.scalar_type());
    if (!cuda_kernels::has_gelu_backward(input)) return {at::gelu_backward(of_output, input)};
    auto [of_input, sums] = cuda_kernels::gelu_backward(of_output, input);
    know_sums(of_input, sums);
    return {of_input};
  }
};

struct SavedRelu : Saved {
  Tensor output;

  std::vector<Tensor> backward(const Tensor &gradient) override { return {at::threshold_backward(as_kind(gradient, output.scalar_type()), output, 0)}; }
};

struct SavedDropout : Saved {
  Tensor mask;  // bool on CUDA, else the factor itself
  double scale;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    if (mask.scalar_type() == at::kBool) return {at::native_dropout_backward(gradient, mask, scale)};
    return {as_kind(gradient, mask.scalar_type()).mul(mask)};
  }
};

struct SavedResidual : Saved {
  at::ScalarType stream_kind, branch_kind;
  std::shared_ptr<OfSum> of_sum;  // null, or what the norm of the sum gives

  SavedResidual(const Tensor &stream, const Tensor &branch) : stream_kind(stream.scalar_type()), branch_kind(branch.scalar_type()) {}

  Role role() const override { return Role::SUM; }

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto of_branch = of_sum == nullptr ? Tensor() : of_sum->taken_for(gradient);
    return {as_kind(gradient, stream_kind), of_branch.defined() ? of_branch : as_kind(gradient, branch_kind)};
  }
};

// Layer norm by libtorch's kernels; `bias` may be undefined.
Tensor layer_norm(const Tensor &input, const Tensor &weight, const Tensor &bias, double epsilon, Saved **saved) {
  auto shift = bias.defined() ? std::optional<Tensor>(bias) : std::nullopt;
  auto [normed, mean, deviation] = at::native_layer_norm(input, {input.size(-1)}, weight, shift, epsilon);
  if (saved != nullptr) {
    auto state = std::make_unique<SavedLayerNorm>();
    state->input = input, state->mean = mean, state->deviation = deviation, state->weight = weight, state->bias = bias;
    keep(saved, std::move(state));
  }
  return normed;
}

constexpr int64_t IGNORED = -100;

// In f32. With `reuse` the memory of f32 logits is written over.
Tensor log_softmax(const Tensor &logits, bool reuse) {
  // On CUDA one kernel reads f16 and writes f32; of bf16 libtorch would hold a copy in f32 beside the result.
  if (takes_cuda_branches(logits) && logits.scalar_type() == at::kHalf) return at::log_softmax(logits, -1, at::kFloat);
  auto values = as_kind(logits, at::kFloat);
  bool own = reuse || !values.is_same(logits);
  return own && values.is_contiguous() ? at::_log_softmax_out(values, values, -1, false) : at::_log_softmax(values, -1, false);
}

// The gradient of the loss, for each row that counts: [n, 1], f32. targets [n].
Tensor share_of_rows(const Tensor &targets, const Tensor &gradient) {
  return targets.ne(IGNORED).mul(gradient.to(at::kFloat).reshape({1})).unsqueeze(1);
}

struct SavedCrossEntropy : Saved {
  Tensor log_probabilities, targets;  // [n, classes] f32, [n]
  double smoothing;
  at::ScalarType logits_kind;

  // Softmax minus the smoothed one-hot, made in place of the log-probabilities: the largest buffer of a language model exists once.
  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto counted = share_of_rows(targets, gradient);
    auto of_logits = log_probabilities.exp_();
    if (smoothing > 0) of_logits.sub_(smoothing / of_logits.size(1));
    of_logits.scatter_(1, targets.clamp_min(0).unsqueeze(1), smoothing - 1.0, "add");
    if (!takes_cuda_branches(of_logits) || logits_kind == at::kFloat) return {as_kind(of_logits.mul_(counted), logits_kind)};
    // Written once, in the format of the logits. On the CPU libtorch would hold the product in f32 beside it.
    auto rounded = at::empty_like(of_logits, of_logits.options().dtype(logits_kind));
    return {at::mul_out(rounded, of_logits, counted)};
  }
};

// By kernels that read narrow numbers: the logits are never copied to f32.
struct SavedCrossEntropyByKernel : Saved {
  Tensor logits, targets, log_sums;  // [n, classes], [n], [n] f32
  double smoothing;
  bool reuse;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    return {cuda_kernels::of_logits(logits, targets, smoothing, log_sums, as_kind(gradient, at::kFloat), reuse)};
  }
};

// Logits whose rows kernels can read as they are; of others a copy.
Tensor side_by_side(const Tensor &logits) {
  auto pack = numbers_per_pack(logits.scalar_type());
  bool fits = logits.stride(1) == 1 && logits.stride(0) % pack == 0 && logits.stride(0) >= logits.size(1) && (uintptr_t)logits.const_data_ptr() % 16 == 0;
  if (fits) return logits;
  auto columns = (logits.size(1) + pack - 1) / pack * pack;
  auto whole = at::empty({logits.size(0), columns}, logits.options());
  // What lies between the rows may be read with the gradient, which takes this memory.
  if (columns > logits.size(1)) whole.narrow(1, logits.size(1), columns - logits.size(1)).zero_();
  return whole.narrow(1, 0, logits.size(1)).copy_(logits);
}

struct SavedSquaredError : Saved {
  Tensor outputs, targets;  // [n] f32
  std::vector<int64_t> output_sizes;
  at::ScalarType output_kind;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto found = at::mse_loss_backward(gradient.reshape({}), outputs, targets, at::Reduction::Sum);
    return {as_kind(found, output_kind).view(output_sizes)};
  }
};

// Whether the product of this and a weight is one row that is computed here: of f32 on a processor for which MKL has no fast product of a
// matrix and a vector (on an AMD EPYC it reads 7 GB/s on any number of threads, and `kiln_dots` reads 14 from memory and 25 or more from the cache).
bool is_one_row(const Tensor &rows, const Tensor &weight) {
  auto is_plain = [](const Tensor &tensor) { return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous(); };
  return is_slow_in_mkl() && rows.size(0) == 1 && is_plain(rows) && is_plain(weight);
}

// x [1, in] times each row of weight [out, in], plus bias [out] if there is one, to `out`.
void one_row(const Tensor &x, const Tensor &weight, const Tensor &bias, float *out) {
  kiln_dots(weight.const_data_ptr<float>(), x.const_data_ptr<float>(), bias.defined() ? bias.const_data_ptr<float>() : nullptr, out, weight.size(0),
            weight.size(1));
}

}  // namespace

extern "C" {

// y = x wᵀ + b. x [.., in], w [out, in], b [out] or null; `products` names the dtype of the product.
int kiln_linear(Tensor *x, Tensor *w, Tensor *b, int products, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto kind = product_kind(products, *w);
    auto rows = as_kind(*x, kind).reshape({-1, x->size(-1)});
    auto columns = padded_columns(rows, *w, kind);
    auto weight = weights_as({*w}, columns, kind);
    auto sizes = x->sizes().vec();
    sizes.back() = w->size(0);
    if (saved == nullptr && is_one_row(rows, weight)) {
      auto row = at::empty(sizes, rows.options());
      one_row(rows, weight, b == nullptr ? Tensor() : as_kind(*b, kind).contiguous(), row.mutable_data_ptr<float>());
      give(out, row);
      return;
    }
    give(out, product(rows, weight, b == nullptr ? Tensor() : weights_as({*b}, columns, kind)).narrow(1, 0, w->size(0)).view(sizes));
    if (saved == nullptr) return;
    auto state = std::make_unique<SavedLinear>();
    state->out = w->size(0);
    state->rows = rows;
    state->weight = weight;
    state->input_sizes = x->sizes().vec();
    state->input_kind = x->scalar_type();
    state->weight_kind = w->scalar_type();
    state->has_bias = b != nullptr;
    keep(saved, std::move(state));
  });
}

// x wᵀ for each of the weights [out, in], side by side: out [.., out of all]. x [.., in]; one product, as for one layer.
int kiln_linears(Tensor *x, Tensor *const *weights, int count, int products, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto state = std::make_unique<SavedLinears>();
    state->weight_kind = (*weights)->scalar_type();
    auto kind = product_kind(products, **weights);
    auto all_weights = listed(weights, count);
    for (auto &weight : all_weights) state->outs.push_back(weight.size(0));
    auto all = std::accumulate(state->outs.begin(), state->outs.end(), int64_t{0});
    auto sizes = x->sizes().vec();
    sizes.back() = all;
    state->rows = as_kind(*x, kind).reshape({-1, x->size(-1)});
    auto is_one = [&](const Tensor &weight) { return is_one_row(state->rows, weight); };
    if (saved == nullptr && std::all_of(all_weights.begin(), all_weights.end(), is_one)) {
      auto row = at::empty(sizes, state->rows.options());
      auto place = row.mutable_data_ptr<float>();
      for (auto &weight : all_weights) {
        one_row(state->rows, weight, {}, place);
        place += weight.size(0);
      }
      give(out, row);
      return;
    }
    state->weights = weights_as(all_weights, all, kind);
    state->input_sizes = x->sizes().vec();
    state->input_kind = x->scalar_type();
    give(out, product(state->rows, state->weights).view(sizes));
    keep(saved, std::move(state));
  });
}

// x over the root of its mean square along the last axis, times `weight` [width]; no mean is taken off.
int kiln_rms_norm(Tensor *x, Tensor *weight, double epsilon, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto state = std::make_unique<SavedRmsNorm>();
    state->input = x->contiguous();
    state->weight = *weight;
    if (x->is_cuda()) {
      auto [normed, inverse] = at::_fused_rms_norm(state->input, {x->size(-1)}, *weight, epsilon);
      give(out, normed);
      state->inverse = inverse;
    } else {
      auto root = at::linalg_vector_norm(state->input, 2, {-1}, /*keepdim=*/true, at::kFloat);
      state->inverse = root.square_().div_(x->size(-1)).add_(epsilon).rsqrt_();
      give(out, as_kind(state->input.mul(state->inverse), weight->scalar_type()).mul_(*weight));
    }
    keep(saved, std::move(state));
  });
}

// Numbers for the pixels of images: bytes [rows, channels, height, width], and `table` [channels, 256] has the number for each of a channel's
// bytes; out as bytes, f32.
int kiln_normalize(Tensor *bytes, Tensor *table, Tensor **out) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto channels = table->size(0);
    if (takes_cuda_branches(*bytes)) {
      auto first = at::arange(channels, bytes->options().dtype(at::kInt)).mul_(256).view({1, channels, 1, 1});
      auto places = bytes->to(at::kInt).add_(first);
      give(out, table->reshape({-1}).index_select(0, places.reshape({-1})).view(bytes->sizes()));
      return;
    }
    auto numbers = at::empty(bytes->sizes(), bytes->options().dtype(at::kFloat));
    auto plane = bytes->size(2) * bytes->size(3);
    auto from = bytes->const_data_ptr<uint8_t>();
    auto of_value = table->const_data_ptr<float>();
    auto to = numbers.mutable_data_ptr<float>();
    at::parallel_for(0, bytes->size(0) * channels, 1 + (1 << 15) / std::max<int64_t>(plane, 1), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at++) {
        auto known = of_value + at % channels * 256;
        for (int64_t place = at * plane; place < (at + 1) * plane; place++) to[place] = known[from[place]];
      }
    });
    give(out, numbers);
  });
}

// Rows of `table` [rows, width] named by `indices` [..]; out [.., width].
int kiln_embedding(Tensor *table, Tensor *indices, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    give(out, at::embedding(*table, *indices));
    if (saved == nullptr) return;
    auto state = std::make_unique<SavedEmbedding>();
    state->indices = *indices;
    state->rows = table->size(0);
    keep(saved, std::move(state));
  });
}

// Layer norm over the last axis; `bias` may be null. `products` names the dtype of the products that read what it gives; it may be in that dtype.
int kiln_layer_norm(Tensor *x, Tensor *weight, Tensor *bias, double epsilon, int products, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto input = x->contiguous();
    auto kind = product_kind(products, *weight);
    if (bias != nullptr && cuda_kernels::has_layer_norm(input, *weight, *bias, kind)) {
      auto norm = cuda_kernels::layer_norm(input, {}, *weight, *bias, epsilon, kind);
      give(out, norm.normed);
      keep(saved, std::make_unique<SavedLayerNormByKernel>(std::move(norm), *weight));
      return;
    }
    give(out, layer_norm(input, *weight, bias == nullptr ? Tensor() : *bias, epsilon, saved));
  });
}

// Gaussian error linear unit, by the error function.
int kiln_gelu(Tensor *x, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    give(out, at::gelu(*x));
    if (saved != nullptr) keep(saved, std::make_unique<SavedGelu>(*x));
  });
}

// The larger of each value and 0.
int kiln_relu(Tensor *x, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto state = std::make_unique<SavedRelu>();
    state->output = at::relu(*x);
    give(out, state->output);
    keep(saved, std::move(state));
  });
}

// Zeroes each value with `probability` and scales the rest; draws from the device's generator.
int kiln_dropout(Tensor *x, double probability, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto state = std::make_unique<SavedDropout>();
    state->scale = 1.0 / (1.0 - probability);
    if (takes_cuda_branches(*x)) {
      auto [dropped, mask] = at::native_dropout(*x, probability, true);
      give(out, dropped);
      state->mask = mask;
    } else {
      state->mask = at::empty_like(*x).bernoulli_(1.0 - probability).mul_(state->scale);
      give(out, x->mul(state->mask));
    }
    keep(saved, std::move(state));
  });
}

// stream + branch in the wider dtype of the two: the stream stays f32 when branches are narrower.
int kiln_residual(Tensor *stream, Tensor *branch, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    give(out, at::add(*stream, *branch));
    if (saved != nullptr) keep(saved, std::make_unique<SavedResidual>(*stream, *branch));
  });
}

// stream + branch as above, and its layer norm with `weight` and `bias` [width], in the dtype of products if it may be: two operations, of which
// the second has the sum for its input.
int kiln_residual_norm(Tensor *stream, Tensor *branch, Tensor *weight, Tensor *bias, double epsilon, int products, Tensor **sum, Tensor **normed,
                       Saved **saved_sum, Saved **saved_norm) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto of_sum = std::make_unique<SavedResidual>(*stream, *branch);
    auto kind = product_kind(products, *weight);
    if (branch->scalar_type() == kind && stream->sizes() == branch->sizes() && cuda_kernels::has_layer_norm(*stream, *weight, *bias, kind)) {
      auto norm = cuda_kernels::layer_norm(*stream, *branch, *weight, *bias, epsilon, kind);
      give(sum, norm.sum), give(normed, norm.normed);
      auto of_norm = std::make_unique<SavedLayerNormByKernel>(std::move(norm), *weight);
      if (kind != at::kFloat) of_norm->of_sum = of_sum->of_sum = std::make_shared<OfSum>();
      keep(saved_norm, std::move(of_norm));
    } else {
      auto both = at::add(*stream, *branch);
      give(sum, both), give(normed, layer_norm(both.contiguous(), *weight, *bias, epsilon, saved_norm));
    }
    if (saved_sum != nullptr) keep(saved_sum, std::move(of_sum));
  });
}

// Sum of the cross entropies of logits [n, classes] and targets [n] in f32, without those of target -100; out [1]. `smoothing` of
// each target is shared by all classes. With `reuse` nobody else holds the logits' memory, and it is written over.
int kiln_cross_entropy(Tensor *logits, Tensor *targets, int reuse, double smoothing, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    if (has_cuda_kernels(*logits, logits->scalar_type())) {
      if (targets->scalar_type() != at::kLong) throw std::invalid_argument("targets of a cross entropy are 64-bit integers");
      auto state = std::make_unique<SavedCrossEntropyByKernel>();
      state->logits = side_by_side(*logits), state->targets = targets->contiguous(), state->smoothing = smoothing;
      state->reuse = reuse != 0 || !state->logits.is_same(*logits);
      Tensor losses;
      std::tie(losses, state->log_sums) = cuda_kernels::losses(state->logits, state->targets, smoothing);
      give(out, at::sum(losses, {0}, /*keepdim=*/true));
      keep(saved, std::move(state));
      return;
    }
    auto log_probabilities = log_softmax(*logits, reuse != 0);
    auto loss = at::nll_loss(log_probabilities, *targets, {}, at::Reduction::Sum, IGNORED).reshape({1});
    if (smoothing > 0) {
      auto counted = targets->ne(IGNORED).to(at::kFloat);
      auto of_all = log_probabilities.mean(1).mul_(counted).sum().reshape({1});
      loss = loss.mul_(1.0 - smoothing).sub_(of_all, smoothing);
    }
    give(out, loss);
    if (saved == nullptr) return;
    auto state = std::make_unique<SavedCrossEntropy>();
    state->log_probabilities = log_probabilities;
    state->targets = *targets;
    state->smoothing = smoothing;
    state->logits_kind = logits->scalar_type();
    keep(saved, std::move(state));
  });
}

// Sum of the squared differences of outputs [n, 1] and targets [n], f32, in f32; out [1]. Neither is written over before the backward pass.
int kiln_squared_error(Tensor *outputs, Tensor *targets, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto state = std::make_unique<SavedSquaredError>();
    state->outputs = as_kind(*outputs, at::kFloat).reshape({-1}), state->targets = *targets;
    state->output_sizes = outputs->sizes().vec(), state->output_kind = outputs->scalar_type();
    give(out, at::mse_loss(state->outputs, state->targets, at::Reduction::Sum).reshape({1}));
    keep(saved, std::move(state));
  });
}

int kiln_role(const Saved *saved) { return (int)saved->role(); }

// Gradients of the inputs, null where there is none; `results` has room for `count`. `added`, which may be null, is what the first input of a
// norm has got of its gradient already.
int kiln_backward(Saved *saved, Tensor *gradient, Tensor *added, Tensor **results, int count) {
  return guarded([&] {
    OutsideOfGraphs outside;
    if (added != nullptr) saved->added = *added;
    auto found = saved->backward(*gradient);
    for (int at = 0; at < count && at < (int)found.size(); at++) {
      if (found[at].defined()) give(&results[at], found[at]);
    }
  });
}

void kiln_forget(Saved *saved) { delete saved; }
}
