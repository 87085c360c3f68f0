//! Each operation on libtorch equals the one that is composed of burn's own operations on engine
//! flex, in its values and gradients: in each precision, at sizes for which libtorch chooses other
//! kernels, and by the ways meant for CUDA. `KILN_TEST_DEVICE=cuda` computes it on a GPU.
#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

use burn::tensor::{FloatDType, Gradients, Int, Tensor, TensorData};
use kiln_core::{
    kinds::random::{SplitMix64, mix},
    spec::{Engine, Precision},
};
use kiln_trial::engine::{
    After, ConvGeometry, ConvNormWeights, EngineDevice, IGNORED_TARGET, LstmState, LstmWeights,
    Ops, RunningStats, libtorch::emulate_cuda_kernels,
};

use crate::common::{
    engines, is_cuda, slack,
    tensors::{Forced, numbers, of_products, opened},
};

/// The ways that operations take on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ways {
    Cpu,
    /// Those meant for CUDA.
    Cuda,
    /// With kiln's own kernels, which a CPU runs thread by thread.
    CudaByKernels,
}

/// A device, and the arithmetic in which an operation runs there.
struct Place {
    precision: Precision,
    ways: Ways,
    device: EngineDevice,
    ops: Ops,
}

/// Reads the gradient of one leaf.
type Leaf<'a> = &'a dyn Fn(&Gradients) -> Vec<f32>;
type OwnLeaf = Box<dyn Fn(&Gradients) -> Vec<f32>>;
/// The values of an operation, then the gradients of its leaves.
type Found = Vec<Vec<f32>>;
type Case = (String, Box<dyn Fn(&Place) -> Found>);

impl Place {
    fn open(engine: Engine, precision: Precision, ways: Ways) -> Self {
        let device = opened(engine);
        device.set_precision(precision).unwrap();
        Self {
            precision,
            ways,
            device,
            ops: Ops::new(engine, precision)
                .unwrap()
                .on_cuda(ways != Ways::Cpu),
        }
    }

    fn dtype_of_weights(&self) -> FloatDType {
        if self.precision == Precision::Bf16 {
            FloatDType::BF16
        } else {
            FloatDType::F32
        }
    }

    /// Something that gets a gradient.
    fn leaf<const D: usize>(&self, shape: [usize; D], salt: usize) -> Tensor<D> {
        Tensor::<D>::from_data(values(shape, salt), &self.device.with_gradients())
            .cast(self.dtype_of_weights())
            .require_grad()
    }

    /// Something that gets none.
    fn constant<const D: usize>(&self, shape: [usize; D], salt: usize) -> Tensor<D> {
        Tensor::from_data(values(shape, salt), self.device.plain())
    }

    fn of_products<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        of_products(self.precision, x)
    }

    fn integers<const D: usize>(&self, numbers: Vec<i64>, shape: [usize; D]) -> Tensor<D, Int> {
        Tensor::from_data(TensorData::new(numbers, shape), self.device.plain())
    }

    /// 0, and −∞ over the last columns of each row: none, one, two, three, none, …
    fn mask(&self, [batch, columns]: [usize; 2]) -> Tensor<4> {
        let is_hidden = |row: usize, column: usize| column >= columns - row % 4;
        let numbers: Vec<f32> = (0..batch)
            .flat_map(|row| (0..columns).map(move |column| (row, column)))
            .map(|(row, column)| {
                if is_hidden(row, column) {
                    f32::NEG_INFINITY
                } else {
                    0.0
                }
            })
            .collect();
        Tensor::from_data(
            TensorData::new(numbers, [batch, 1, 1, columns]),
            self.device.plain(),
        )
    }
}

/// Values without pattern between −1 and 1, the same on each engine, that each format holds exactly.
fn values<const D: usize>(shape: [usize; D], salt: usize) -> TensorData {
    let mut random = SplitMix64::new(mix(salt as u64));
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count)
        .map(|_| random.below(64) as f32 / 32.0 - 1.0)
        .collect();
    TensorData::new(numbers, shape)
}

fn leaf<const D: usize>(tensor: &Tensor<D>) -> impl Fn(&Gradients) -> Vec<f32> + use<D> {
    let tensor = tensor.clone();
    move |gradients| numbers(tensor.grad(gradients).expect("the leaf has a gradient"))
}

/// The output of an operation on leaves, and the leaves' gradients of its weighted sum.
fn both_ways<const D: usize>(output: Tensor<D>, leaves: &[Leaf<'_>]) -> Found {
    let weights = Tensor::from_data(values(output.dims(), 99), &output.device());
    let sum = (output.clone().cast(FloatDType::F32) * weights).sum();
    let gradients = sum.backward();
    let mut found = vec![numbers(output)];
    found.extend(leaves.iter().map(|leaf| leaf(&gradients)));
    found
}

fn case(name: String, run: impl Fn(&Place) -> Found + 'static) -> Case {
    (name, Box::new(run))
}

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    for [rows, inputs, outputs] in [
        [3, 8, 5],
        [33, 129, 65],
        [16, 64, 128],
        // On some processors these go to oneDNN (`shim/products.cpp`).
        [130, 257, 139],
        [66, 65, 523],
    ] {
        let of = move |what: &str| format!("{what}, {rows} × {inputs} to {outputs}");
        cases.push(case(of("linear"), move |on| {
            let (x, w, b) = (
                on.leaf([2, rows, inputs], 1),
                on.leaf([outputs, inputs], 2),
                on.leaf([outputs], 3),
            );
            both_ways(
                on.ops.linear(x.clone(), w.clone(), Some(b.clone())),
                &[&leaf(&x), &leaf(&w), &leaf(&b)],
            )
        }));
        cases.push(case(of("linear of one row again and again"), move |on| {
            let (x, w) = (on.leaf([1, inputs], 1), on.leaf([outputs, inputs], 2));
            let every_row = x.clone().expand([rows, inputs]);
            both_ways(
                on.ops.linear(every_row, w.clone(), None),
                &[&leaf(&x), &leaf(&w)],
            )
        }));
        cases.push(case(of("linear of some columns"), move |on| {
            let (x, w) = (
                on.leaf([rows, inputs + 7], 1),
                on.leaf([outputs, inputs], 2),
            );
            let columns = x.clone().narrow(1, 3, inputs);
            both_ways(
                on.ops.linear(columns, w.clone(), None),
                &[&leaf(&x), &leaf(&w)],
            )
        }));
        cases.push(case(of("linear without bias"), move |on| {
            let (x, w) = (on.leaf([rows, inputs], 1), on.leaf([outputs, inputs], 2));
            both_ways(
                on.ops.linear(x.clone(), w.clone(), None),
                &[&leaf(&x), &leaf(&w)],
            )
        }));
        cases.push(case(of("linear and GELU"), move |on| {
            let (x, w) = (on.leaf([rows, inputs], 1), on.leaf([outputs, inputs], 2));
            let b = on.leaf([outputs], 3);
            // Both ways of the unit, and what lies between.
            let small = w.clone() * (4.0 / (inputs as f64).sqrt());
            let hidden = on.ops.linear(x.clone(), small, Some(b.clone()));
            both_ways(on.ops.gelu(hidden), &[&leaf(&x), &leaf(&w), &leaf(&b)])
        }));
        cases.push(case(of("linear and GELU without bias"), move |on| {
            let (x, w) = (on.leaf([2, rows, inputs], 1), on.leaf([outputs, inputs], 2));
            let small = w.clone() * (4.0 / (inputs as f64).sqrt());
            both_ways(
                on.ops.gelu(on.ops.linear(x.clone(), small, None)),
                &[&leaf(&x), &leaf(&w)],
            )
        }));
        cases.push(case(of("two linear layers side by side"), move |on| {
            let (x, v, w) = (
                on.leaf([2, rows, inputs], 1),
                on.leaf([outputs, inputs], 2),
                on.leaf([outputs + 3, inputs], 3),
            );
            both_ways(
                on.ops.linears(x.clone(), &[v.clone(), w.clone()]),
                &[&leaf(&x), &leaf(&v), &leaf(&w)],
            )
        }));
        cases.push(case(of("three, one of them twice"), move |on| {
            let (x, v, w) = (
                on.leaf([2, rows, inputs], 1),
                on.leaf([outputs, inputs], 2),
                on.leaf([outputs, inputs], 3),
            );
            both_ways(
                on.ops
                    .linears(x.clone(), &[w.clone(), v.clone(), w.clone()]),
                &[&leaf(&x), &leaf(&v), &leaf(&w)],
            )
        }));
    }
    cases
}

/// Norms and what works on each value by itself.
fn values_and_rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for width in [8, 67, 256] {
        let of = move |what: &str| format!("{what} of {width}");
        cases.push(case(of("layer norm"), move |on| {
            let (x, w, b) = (
                on.leaf([2, 3, width], 1),
                on.leaf([width], 2),
                on.leaf([width], 3),
            );
            both_ways(
                on.ops.layer_norm(x.clone(), w.clone(), Some(b.clone())),
                &[&leaf(&x), &leaf(&w), &leaf(&b)],
            )
        }));
        cases.push(case(of("layer norm for products"), move |on| {
            let (x, w, b) = (
                on.leaf([2, 3, width], 1),
                on.leaf([width], 2),
                on.leaf([width], 3),
            );
            both_ways(
                on.ops
                    .layer_norm_for_products(x.clone(), w.clone(), Some(b.clone())),
                &[&leaf(&x), &leaf(&w), &leaf(&b)],
            )
        }));
        cases.push(case(of("layer norm without bias"), move |on| {
            let (x, w) = (on.leaf([2, 3, width], 1), on.leaf([width], 2));
            both_ways(
                on.ops.layer_norm(x.clone(), w.clone(), None),
                &[&leaf(&x), &leaf(&w)],
            )
        }));
        cases.push(case(of("rms norm"), move |on| {
            let (x, w) = (on.leaf([2, 3, width], 1), on.leaf([width], 2));
            both_ways(
                on.ops.rms_norm(x.clone(), w.clone()),
                &[&leaf(&x), &leaf(&w)],
            )
        }));
        cases.push(case(of("relu"), move |on| {
            let x = on.leaf([4, width], 1);
            both_ways(on.ops.relu(on.of_products(x.clone())), &[&leaf(&x)])
        }));
        cases.push(case(of("residual"), move |on| {
            let (x, y) = (on.leaf([2, 3, width], 1), on.leaf([2, 3, width], 2));
            both_ways(
                on.ops.residual(x.clone(), on.of_products(y.clone())),
                &[&leaf(&x), &leaf(&y)],
            )
        }));
        cases.push(case(of("embedding"), move |on| {
            let table = on.leaf([7, width], 1);
            let indices = on.integers(vec![0, 3, 3, 6, 0, 1], [2, 3]);
            both_ways(on.ops.embedding(table.clone(), indices), &[&leaf(&table)])
        }));
        cases.push(case(of("squared error"), move |on| {
            let outputs = on.leaf([width, 1], 1);
            let targets = on.constant([width], 2);
            both_ways(
                on.ops
                    .squared_error(on.of_products(outputs.clone()), targets),
                &[&leaf(&outputs)],
            )
        }));
        for smoothing in [0.0, 0.1] {
            let name = of(&format!("cross entropy with smoothing {smoothing}"));
            cases.push(case(name, move |on| {
                let logits = on.leaf([4, width], 1);
                let targets = on.integers(vec![2, IGNORED_TARGET, 7, 0], [4]);
                let narrow = on.of_products(logits.clone());
                both_ways(
                    on.ops.cross_entropy(narrow, targets, smoothing),
                    &[&leaf(&logits)],
                )
            }));
        }
    }
    cases
}

/// Sums and their norms, one after the other. What a norm gives its sum is added to what a later sum
/// gave it, unless the stream is a leaf, and what is given to a branch is known then, unless
/// somebody else reads the sum.
fn streams() -> Vec<Case> {
    #[derive(Clone, Copy, Debug)]
    enum Readers {
        SumsAndNorms,
        /// Also another sum, whose backward pass comes before the norm's or after it.
        Others {
            first: bool,
        },
        /// The first sum is read by its norm alone.
        Norm,
    }
    let mut cases = Vec::new();
    for (width, has_bias) in [(8, true), (64, true), (260, true), (64, false)] {
        for readers in [
            Readers::SumsAndNorms,
            Readers::Others { first: true },
            Readers::Others { first: false },
            Readers::Norm,
        ] {
            for is_leaf in [true, false] {
                let name = format!(
                    "a stream of width {width}, a leaf: {is_leaf}, bias {has_bias}, {readers:?}"
                );
                cases.push(case(name, move |on| {
                    let x = on.leaf([2, 17, width], 1);
                    let stream = if is_leaf { x.clone() } else { x.clone() * 0.75 };
                    let gains = [2, 3, 4].map(|salt| on.leaf([width], salt));
                    let shifts = [5, 6, 7].map(|salt| on.leaf([width], salt));
                    let weights = [8, 9].map(|salt| on.leaf([width, width], salt));
                    let biases = [11, 12].map(|salt| on.leaf([width], salt));
                    let shift = |at: usize| has_bias.then(|| shifts[at].clone());
                    let branch = |normed, at: usize| {
                        let small = weights[at].clone() * (1.0 / (width as f64).sqrt());
                        on.ops
                            .linear(normed, small, has_bias.then(|| biases[at].clone()))
                    };
                    let normed =
                        on.ops
                            .layer_norm_for_products(stream.clone(), gains[0].clone(), shift(0));
                    let (first, normed) = on.ops.residual_norm(
                        stream.clone(),
                        branch(normed, 0),
                        gains[1].clone(),
                        shift(1),
                    );
                    let stream = match readers {
                        Readers::Norm => stream,
                        _ => first.clone(),
                    };
                    let (mut last, normed) =
                        on.ops
                            .residual_norm(stream, branch(normed, 1), gains[2].clone(), shift(2));
                    if let Readers::Others { first: is_first } = readers {
                        let constant = on.of_products(on.constant([2, 17, width], 10));
                        let other = on.ops.residual(first, constant);
                        last = if is_first { other + last } else { last + other };
                    }
                    let out = on.ops.residual(last, on.of_products(normed));
                    let readers: Vec<OwnLeaf> = gains
                        .iter()
                        .chain(shifts.iter().chain(&biases).filter(|_| has_bias))
                        .map(|vector| Box::new(leaf(vector)) as OwnLeaf)
                        .chain(
                            weights
                                .iter()
                                .map(|matrix| Box::new(leaf(matrix)) as OwnLeaf),
                        )
                        .collect();
                    let of_x = leaf(&x);
                    let mut leaves: Vec<Leaf<'_>> = vec![&of_x];
                    leaves.extend(readers.iter().map(|reader| &**reader as Leaf<'_>));
                    both_ways(out, &leaves)
                }));
            }
        }
    }
    cases
}

/// Rows that no thread of a kernel reads at once.
fn large_loss() -> Case {
    const ROWS: usize = 60;
    const CLASSES: usize = 50_000;
    case("cross entropy of many logits".to_owned(), |on| {
        let targets: Vec<i64> = (0..ROWS as i64)
            .map(|row| {
                if row % 5 == 4 {
                    IGNORED_TARGET
                } else {
                    row * 800
                }
            })
            .collect();
        let logits = on.leaf([ROWS, CLASSES], 1);
        let narrow = on.of_products(logits.clone());
        let loss = on
            .ops
            .cross_entropy(narrow, on.integers(targets.clone(), [ROWS]), 0.0);
        let of_logits = leaf(&logits)(&loss.backward());
        let (of_targets, others): (Vec<_>, Vec<_>) = of_logits
            .into_iter()
            .enumerate()
            .partition(|(at, _)| targets[at / CLASSES] == (at % CLASSES) as i64);
        let all = |found: Vec<(usize, f32)>, times: f32| {
            found
                .into_iter()
                .map(|(_, number)| number * times)
                .collect()
        };
        // Those of the others are small, and each counts.
        vec![
            numbers(loss),
            all(of_targets, 1.0),
            all(others, CLASSES as f32),
        ]
    })
}

/// A layer of so many weights, and so odd an output, that tensor cores would read its rows slowly
/// (`padded_columns` in `shim/operations.cpp`), and the loss of what it gives.
fn odd_heads() -> Vec<Case> {
    #[derive(Clone, Copy, Debug)]
    enum Bias {
        No,
        OfTheLayer,
        /// Added by burn: the loss then has a copy of the logits, whose rows may lie as far apart as
        /// those of the product.
        Apart,
    }
    let head = |bias: Bias, outputs: usize| {
        let name = format!("a head of {outputs} outputs and its loss, bias {bias:?}");
        case(name, move |on| {
            let (x, w) = (on.leaf([2, 33, 1024], 1), on.leaf([outputs, 1024], 2));
            let b = on.leaf([outputs], 3);
            let of_layer = matches!(bias, Bias::OfTheLayer).then(|| b.clone());
            let mut logits = on.ops.linear(x.clone(), w.clone(), of_layer);
            if matches!(bias, Bias::Apart) {
                logits = logits + on.of_products(b.clone()).unsqueeze();
            }
            let shown = numbers(logits.clone());
            let last = outputs as i64 - 1;
            let targets = [last, IGNORED_TARGET, 7, 0, 512, last - 1].repeat(11);
            let loss = on.ops.cross_entropy(
                logits.reshape([66, outputs]),
                on.integers(targets, [66]),
                0.0,
            );
            let (of_x, of_w, of_b) = (leaf(&x), leaf(&w), leaf(&b));
            let mut leaves: Vec<Leaf<'_>> = vec![&of_x, &of_w];
            if !matches!(bias, Bias::No) {
                leaves.push(&of_b);
            }
            let mut found = both_ways(loss, &leaves);
            found.push(shown);
            found
        })
    };
    vec![
        head(Bias::No, 1031),
        head(Bias::OfTheLayer, 1031),
        head(Bias::Apart, 1087),
    ]
}

/// Widths of a head for which libtorch's kernels differ: not a multiple of 8, 8 to 128, one that no
/// kernel of flash attention has a backward pass for on every GPU.
fn attentions() -> Vec<Case> {
    let mut cases = Vec::new();
    for (time, heads, width) in [
        (6, 2, 4),
        (17, 3, 8),
        (65, 2, 32),
        (40, 1, 64),
        (33, 1, 80),
        (64, 2, 128),
        (24, 1, 200),
    ] {
        let of = move |what: &str| format!("{what}, {heads} heads of {width}, {time} tokens");
        // Queries at which no softmax is nearly all on one key.
        let small = move |x: Tensor<3>| x * (width as f32).powf(-0.25);
        cases.push(case(of("causal attention"), move |on| {
            let qkv = on.leaf([2, time, 3 * heads * width], 1);
            both_ways(
                on.ops
                    .causal_attention(on.of_products(qkv.clone()), heads, 0.0),
                &[&leaf(&qkv)],
            )
        }));
        cases.push(case(
            of("causal attention of what a layer gives"),
            move |on| {
                let inner = heads * width;
                let (x, w) = (on.leaf([2, time, 24], 1), on.leaf([3 * inner, 24], 2));
                let b = on.leaf([3 * inner], 3);
                let scale = (width as f64).powf(-0.25) * 0.25;
                let bias = Some(b.clone() * scale);
                let qkv = on.ops.linear(x.clone(), w.clone() * scale, bias);
                both_ways(
                    on.ops.causal_attention(qkv, heads, 0.0),
                    &[&leaf(&x), &leaf(&w), &leaf(&b)],
                )
            },
        ));
        for (has_bias, has_mask) in [(true, true), (true, false), (false, true), (false, false)] {
            let with = match (has_bias, has_mask) {
                (true, true) => "a bias and a mask",
                (true, false) => "a bias",
                (false, true) => "a mask",
                (false, false) => "nothing added",
            };
            cases.push(case(
                of(&format!("attention to itself with {with}")),
                move |on| {
                    let qkv = on.leaf([3, time, 3 * heads * width], 1);
                    let bias = on.leaf([heads, time, time], 2);
                    let added = on.ops.added_to_scores(
                        has_bias.then(|| bias.clone()),
                        has_mask.then(|| on.mask([3, time])),
                    );
                    let out = on.ops.self_attention(
                        on.of_products(small(qkv.clone())),
                        &added,
                        heads,
                        0.0,
                    );
                    match has_bias {
                        true => both_ways(out, &[&leaf(&qkv), &leaf(&bias)]),
                        false => both_ways(out, &[&leaf(&qkv)]),
                    }
                },
            ));
            cases.push(case(
                of(&format!("attention to others with {with}")),
                move |on| {
                    let seen = time + 5;
                    let queries = on.leaf([3, time, heads * width], 1);
                    let keys_values = on.leaf([3, seen, 2 * heads * width], 2);
                    let bias = on.leaf([heads, time, seen], 3);
                    let added = on.ops.added_to_scores(
                        has_bias.then(|| bias.clone()),
                        has_mask.then(|| on.mask([3, seen])),
                    );
                    let out = on.ops.attention_to(
                        on.of_products(small(queries.clone())),
                        on.of_products(small(keys_values.clone())),
                        &added,
                        heads,
                        0.0,
                    );
                    let of_both: [Leaf<'_>; 2] = [&leaf(&queries), &leaf(&keys_values)];
                    match has_bias {
                        true => both_ways(out, &[of_both[0], of_both[1], &leaf(&bias)]),
                        false => both_ways(out, &of_both),
                    }
                },
            ));
        }
    }
    cases
}

fn lstms() -> Vec<Case> {
    let mut cases = Vec::new();
    for (layers, width, has_state) in [
        (1, 3, false),
        (2, 3, true),
        (3, 32, true),
        // More than run as one operation.
        (5, 8, true),
    ] {
        let name = format!("an LSTM of {layers} layers of {width}, state before: {has_state}");
        cases.push(case(name, move |on| {
            let x = on.leaf([2, 5, 4], 1);
            let weights: Vec<LstmWeights> = (0..layers)
                .map(|layer| LstmWeights {
                    input: on.leaf([4 * width, if layer == 0 { 4 } else { width }], 2 + layer),
                    state: on.leaf([4 * width, width], 12 + layer),
                    input_bias: on.leaf([4 * width], 22 + layer),
                    state_bias: on.leaf([4 * width], 32 + layer),
                })
                .collect();
            // Of more rows than the batch has, as in the last, smaller batch of an evaluation.
            let before = has_state.then(|| {
                LstmState {
                    hidden: on.constant([layers, 3, width], 6),
                    cell: on.constant([layers, 3, width], 7),
                }
                .of_rows(2)
            });
            let (out, after) = on.ops.lstm(x.clone(), &weights, before, 0.0);
            let readers: Vec<OwnLeaf> = weights
                .iter()
                .flat_map(|layer| {
                    [
                        Box::new(leaf(&layer.input)) as OwnLeaf,
                        Box::new(leaf(&layer.state)),
                        Box::new(leaf(&layer.input_bias)),
                        Box::new(leaf(&layer.state_bias)),
                    ]
                })
                .collect();
            let of_x = leaf(&x);
            let mut leaves: Vec<Leaf<'_>> = vec![&of_x];
            leaves.extend(readers.iter().map(|reader| &**reader as Leaf<'_>));
            let mut found = both_ways(out, &leaves);
            found.extend([numbers(after.hidden), numbers(after.cell)]);
            found
        }));
    }
    cases
}

/// Strides and few channels side by side are where libtorch's own kernels on the CPU go wrong.
fn convolutions() -> Vec<Case> {
    let mut cases = Vec::new();
    for (channels, kernel) in [
        (1, 1),
        (3, 1),
        (4, 1),
        (7, 1),
        (8, 1),
        (12, 1),
        (16, 1),
        (20, 1),
        (3, 3),
        (4, 3),
        (32, 3),
        (3, 7),
    ] {
        for stride in [1, 2] {
            let name = format!("{channels} channels, {kernel} × {kernel} every {stride}");
            let weights = move |on: &Place| ConvNormWeights {
                weight: on.leaf([6, channels, kernel, kernel], 2),
                gain: on.leaf([6], 3),
                shift: on.leaf([6], 4),
                stats: RunningStats::new(6, on.device.plain()),
            };
            let geometry = ConvGeometry {
                stride,
                padding: kernel / 2,
            };
            cases.push(case(
                format!("a convolution and its norm, {name}"),
                move |on| {
                    let (x, weights) = (on.leaf([4, channels, 7, 8], 1), weights(on));
                    let made =
                        on.ops
                            .conv_norm(x.clone(), weights.clone(), geometry, After::Nothing);
                    let of_rest: [Leaf<'_>; 3] =
                        [&leaf(&x), &leaf(&weights.gain), &leaf(&weights.shift)];
                    // A norm undoes the one factor of a channel, whose gradient is 0 but for
                    // rounding.
                    let mut found = if channels * kernel == 1 {
                        both_ways(made, &of_rest)
                    } else {
                        let of_weight = leaf(&weights.weight);
                        let [x, gain, shift] = of_rest;
                        both_ways(made, &[x, &of_weight, gain, shift])
                    };
                    found.extend(weights.stats.get().map(numbers));
                    found
                },
            ));
            cases.push(case(format!("the same in evaluation, {name}"), move |on| {
                let x = on.constant([4, channels, 7, 8], 1);
                let ConvNormWeights {
                    weight,
                    gain,
                    shift,
                    stats,
                } = weights(on);
                stats.set([on.constant([6], 5), on.constant([6], 6) * 0.25 + 1.0]);
                let weights = ConvNormWeights {
                    weight: weight.inner(),
                    gain: gain.inner(),
                    shift: shift.inner(),
                    stats,
                };
                let x = x.cast(on.dtype_of_weights());
                let made = on
                    .ops
                    .evaluating()
                    .conv_norm(x, weights, geometry, After::Relu);
                vec![numbers(made)]
            }));
        }
    }
    for is_summed in [true, false] {
        let name = format!("a convolution whose output is rectified, after a sum: {is_summed}");
        cases.push(case(name, move |on| {
            let (x, other) = (on.leaf([4, 8, 6, 6], 1), on.leaf([4, 8, 6, 6], 5));
            let weights = ConvNormWeights {
                weight: on.leaf([8, 8, 3, 3], 2),
                gain: on.leaf([8], 3),
                shift: on.leaf([8], 4),
                stats: RunningStats::new(8, on.device.plain()),
            };
            let geometry = ConvGeometry {
                stride: 1,
                padding: 1,
            };
            // Far from 0, where a rounding would open or close the rectifier.
            let after = match is_summed {
                true => After::SumRelu(on.of_products(other.clone().sign() * 8.0 + other.clone())),
                false => After::Relu,
            };
            let made = on
                .ops
                .conv_norm(x.clone(), weights.clone(), geometry, after);
            let (of_x, of_other) = (leaf(&x), leaf(&other));
            match is_summed {
                true => both_ways(made, &[&of_x, &leaf(&weights.weight), &of_other]),
                false => vec![numbers(made)],
            }
        }));
    }
    // As many channels as kernels read at once, twice as many blocks of them, and a number that leaves
    // a block half empty; numbers on both sides of 0, so far that no rounding opens or closes the
    // rectifier.
    for channels in [8, 72, 128] {
        for is_rectified in [true, false] {
            let name =
                format!("the norm of {channels} channels far from 0, rectified: {is_rectified}");
            cases.push(case(name, move |on| {
                let x = on.leaf([3, channels, 5, 7], 1);
                let far = x.clone().sign() * 8.0 + x.clone();
                let identity = Tensor::<2>::eye(channels, &on.device.with_gradients())
                    .reshape([channels, channels, 1, 1])
                    .cast(on.dtype_of_weights());
                let of_weight = on.leaf([channels, channels, 1, 1], 2);
                let (gain, shift) = (on.leaf([channels], 3), on.leaf([channels], 4));
                let weights = ConvNormWeights {
                    weight: of_weight.clone() * (0.1 / channels as f64) + identity,
                    gain: gain.clone() + 2.0,
                    shift: shift.clone() * 0.1,
                    stats: RunningStats::new(channels, on.device.plain()),
                };
                let geometry = ConvGeometry {
                    stride: 1,
                    padding: 0,
                };
                let after = if is_rectified {
                    After::Relu
                } else {
                    After::Nothing
                };
                let stats = weights.stats.clone();
                let made = on.ops.conv_norm(far, weights, geometry, after);
                let mut found = both_ways(
                    made,
                    &[&leaf(&x), &leaf(&of_weight), &leaf(&gain), &leaf(&shift)],
                );
                found.extend(stats.get().map(numbers));
                found
            }));
        }
    }
    cases.push(case("the largest of pieces".to_owned(), |on| {
        let x = on.leaf([2, 5, 9, 8], 1);
        vec![numbers(on.ops.max_pool(on.of_products(x)))]
    }));
    cases
}

/// How far a part is from the reference: all of its numbers together as a share of the reference's
/// length, and the worst of them as a share of the reference's largest.
fn distances(found: &[f32], expected: &[f32]) -> [f64; 2] {
    assert_eq!(found.len(), expected.len());
    let length =
        |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let expected: Vec<f64> = expected.iter().map(|x| f64::from(*x)).collect();
    let differences: Vec<f64> = found
        .iter()
        .zip(&expected)
        .map(|(found, expected)| f64::from(*found) - expected)
        .collect();
    let largest = expected.iter().fold(1e-3_f64, |most, x| most.max(x.abs()));
    // `max` would pass over what is not a number.
    let worst = differences.iter().fold(
        0.0_f64,
        |most, x| {
            if x.abs() <= most { most } else { x.abs() }
        },
    );
    [
        length(&mut differences.iter().copied()) / length(&mut expected.iter().copied()).max(1e-3),
        worst / largest,
    ]
}

/// The largest [`distances`] that come from rounding: some sums of a hundred terms in f32, or some
/// factors and results of 8 (bf16) or 11 bits (f16).
fn allowed(precision: Precision, in_bf16: [f64; 2]) -> [f64; 2] {
    match precision {
        Precision::F32 => [1e-5, 3e-5].map(|share| share * slack()),
        Precision::AmpF16 => [0.006, 0.015],
        _ => in_bf16,
    }
}

fn equal_composed_ones(cases: &[Case]) {
    equal_within(cases, [0.02, 0.06]);
}

fn equal_within(cases: &[Case], in_bf16: [f64; 2]) {
    // No ways but those of CUDA are on a GPU, and kernels wherever they can be compiled.
    let ways: &[Ways] = if is_cuda() {
        &[Ways::CudaByKernels]
    } else {
        &[Ways::Cpu, Ways::Cuda, Ways::CudaByKernels]
    };
    let places: Vec<Place> = [
        Precision::F32,
        Precision::AmpBf16,
        Precision::AmpF16,
        Precision::Bf16,
    ]
    .into_iter()
    .flat_map(|precision| {
        ways.iter()
            .map(move |ways| Place::open(Engine::Libtorch, precision, *ways))
    })
    .collect();
    let flex = Place::open(Engine::Flex, Precision::F32, Ways::Cpu);
    let mut wrong = Vec::new();
    for (name, run) in cases {
        let composed = run(&flex);
        for place in &places {
            let forced = (place.ways != Ways::Cpu).then(Forced::begin);
            emulate_cuda_kernels(place.ways == Ways::CudaByKernels);
            // TF32 is a switch of the process.
            place.device.set_precision(place.precision).unwrap();
            let fused = run(place);
            emulate_cuda_kernels(false);
            drop(forced);
            assert_eq!(fused.len(), composed.len(), "{name}");
            let allowed = allowed(place.precision, in_bf16);
            for (part, (fused, composed)) in fused.iter().zip(&composed).enumerate() {
                let found = distances(fused, composed);
                if !(found[0] <= allowed[0] && found[1] <= allowed[1]) {
                    wrong.push(format!(
                        "{name} in {}, ways: {:?}, part {part}: {found:?}, allowed {allowed:?}",
                        place.precision.name(),
                        place.ways
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn products_equal_composed_ones() {
    equal_composed_ones(&products());
}

#[test]
fn heads_of_an_odd_number_of_outputs_equal_composed_ones() {
    // Logits of a thousand terms in 8 bits are rounded by more than those of a few.
    equal_within(&odd_heads(), [0.03, 0.06]);
}

#[test]
fn norms_and_what_works_on_values_equal_composed_ones() {
    equal_composed_ones(&values_and_rows());
}

#[test]
fn sums_and_their_norms_equal_composed_ones() {
    // Three narrow products, one after the other.
    equal_within(&streams(), [0.03, 0.06]);
}

#[test]
fn the_loss_of_many_logits_equals_a_composed_one() {
    equal_composed_ones(&[large_loss()]);
}

#[test]
fn attention_equals_a_composed_one_at_every_width_of_a_head() {
    equal_composed_ones(&attentions());
}

#[test]
fn lstm_layers_equal_composed_ones() {
    // On processors without units for bf16 each gate is rounded by itself.
    equal_within(&lstms(), [0.03, 0.06]);
}

#[test]
fn convolutions_equal_composed_ones() {
    equal_composed_ones(&convolutions());
}

#[test]
fn the_largest_values_of_a_row_come_first_with_their_columns() {
    for &engine in engines() {
        let x = Tensor::<2>::from_data(
            [[0.5, 3.0, -1.0, 2.0], [7.0, 0.0, 8.0, -2.0]],
            opened(engine).plain(),
        );
        let (values, columns) = Ops::new(engine, Precision::F32).unwrap().largest(x, 3);
        assert_eq!(
            numbers(values),
            [3.0, 2.0, 0.5, 8.0, 7.0, 0.0],
            "{engine:?}"
        );
        assert_eq!(
            columns.into_data().iter::<i64>().collect::<Vec<_>>(),
            [1, 3, 0, 2, 0, 1],
            "{engine:?}"
        );
    }
}
