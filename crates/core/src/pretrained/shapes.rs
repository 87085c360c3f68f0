//! The tensors that a checkpoint of each kind of model has: parameters by path, and the running
//! statistics of norms. `kiln-trial` holds them equal to those of the built models.

use std::fmt::Display;

use crate::kinds::{Gpt, InputShape, Lstm, Mlp, Model, PanelLstm, Resnet, Seq2seq, Stem};

/// Sizes of the axes; `None` where the data, which are not known, decide them.
pub type TensorShape = Vec<Option<u64>>;

/// The tensors of a model, by path; `None` for a model that kiln does not know.
pub fn tensors(model: &Model, input: Option<InputShape>) -> Option<Vec<(String, TensorShape)>> {
    let tokens = model.vocabulary(input);
    let list = match model {
        Model::Gpt(gpt) => of_gpt(gpt, tokens),
        Model::Lstm(lstm) => of_lstm(lstm, tokens),
        Model::Mlp(mlp) => of_mlp(mlp, tokens),
        Model::PanelLstm(panel) => of_panel_lstm(panel, input),
        Model::Resnet(resnet) => of_resnet(resnet, input),
        Model::Seq2seq(seq2seq) => of_seq2seq(seq2seq, tokens),
        Model::Matmul(_) | Model::Command(_) | Model::Custom(_) => return None,
    };
    Some(list.all)
}

/// A list in the making.
struct TensorList {
    /// First part of the path of a parameter.
    network: &'static str,
    all: Vec<(String, TensorShape)>,
}

impl TensorList {
    fn new(network: &'static str) -> Self {
        Self {
            network,
            all: Vec::new(),
        }
    }

    fn add(&mut self, path: impl Display, shape: &[Option<u64>]) {
        self.all
            .push((format!("{}.{path}", self.network), shape.to_vec()));
    }

    fn known<const D: usize>(&mut self, path: impl Display, shape: [u64; D]) {
        self.add(path, &shape.map(Some));
    }

    /// A weight [out, in], or the weight of a norm, and its bias, if there is one.
    fn layer<const D: usize>(&mut self, path: &str, shape: [u64; D], bias: bool) {
        self.known(format!("{path}.weight"), shape);
        if bias {
            self.known(format!("{path}.bias"), [shape[0]]);
        }
    }

    /// The parameters of an LSTM layer.
    fn recurrent(&mut self, layer: u64, inputs: Option<u64>, hidden: u64) {
        let path = |part: &str| format!("layers.{layer}.{part}");
        self.add(path("input_weight"), &[Some(4 * hidden), inputs]);
        self.known(path("state_weight"), [4 * hidden, hidden]);
        self.known(path("bias_input"), [4 * hidden]);
        self.known(path("bias_state"), [4 * hidden]);
    }

    /// A convolution and its norm, whose running statistics have no network before their path.
    fn convolution(&mut self, path: &str, [inputs, outputs]: [Option<u64>; 2], kernel: u64) {
        let kernel = Some(kernel);
        self.add(format!("{path}.weight"), &[outputs, inputs, kernel, kernel]);
        self.add(format!("{path}.gain"), &[outputs]);
        self.add(format!("{path}.shift"), &[outputs]);
        for which in ["running_mean", "running_variance"] {
            self.all.push((format!("{path}.{which}"), vec![outputs]));
        }
    }
}

fn of_gpt(gpt: &Gpt, tokens: Option<u64>) -> TensorList {
    let (width, bias) = (gpt.d_model, gpt.bias);
    let mut list = TensorList::new("Gpt");
    list.add("token_table", &[tokens, Some(width)]);
    list.known("position_table", [gpt.seq_len, width]);
    for block in 0..gpt.num_layers {
        let path = |part: &str| format!("blocks.{block}.{part}");
        list.layer(&path("attention_norm"), [width], bias);
        list.layer(
            &path("attention.queries_keys_values"),
            [3 * width, width],
            bias,
        );
        list.layer(&path("attention.projection"), [width, width], bias);
        list.layer(&path("mlp_norm"), [width], bias);
        list.layer(&path("mlp.widening"), [4 * width, width], bias);
        list.layer(&path("mlp.projection"), [width, 4 * width], bias);
    }
    list.layer("final_norm", [width], bias);
    if !gpt.tie_head {
        list.add("head", &[tokens, Some(width)]);
    }
    list
}

fn of_lstm(lstm: &Lstm, tokens: Option<u64>) -> TensorList {
    let (width, hidden) = (lstm.d_model, lstm.hidden);
    let mut list = TensorList::new("Lstm");
    list.add("token_table", &[tokens, Some(width)]);
    for layer in 0..lstm.num_layers {
        let inputs = if layer == 0 { width } else { hidden };
        list.recurrent(layer, Some(inputs), hidden);
    }
    if !lstm.tie_head {
        list.add("head", &[tokens, Some(hidden)]);
    }
    list.add("head_bias", &[tokens]);
    list
}

fn of_mlp(mlp: &Mlp, tokens: Option<u64>) -> TensorList {
    let mut list = TensorList::new("Mlp");
    list.add("token_table", &[tokens, Some(mlp.d_model)]);
    list.layer("hidden", [mlp.hidden, mlp.context * mlp.d_model], true);
    list.add("output.weight", &[tokens, Some(mlp.hidden)]);
    list.add("output.bias", &[tokens]);
    list
}

fn of_panel_lstm(panel: &PanelLstm, input: Option<InputShape>) -> TensorList {
    let shape = input.and_then(InputShape::panel);
    let (width, hidden) = (panel.symbol_width, panel.hidden);
    let first = shape.map(|shape| shape.features + width);
    let mut list = TensorList::new("PanelLstm");
    list.add(
        "symbol_table",
        &[shape.map(|shape| shape.symbols), Some(width)],
    );
    for layer in 0..panel.num_layers {
        let inputs = if layer == 0 { first } else { Some(hidden) };
        list.recurrent(layer, inputs, hidden);
    }
    list.layer("head", [1, hidden], true);
    list
}

fn of_resnet(resnet: &Resnet, input: Option<InputShape>) -> TensorList {
    let shape = input.and_then(InputShape::images);
    let kernel = match resnet.stem {
        Stem::Imagenet => 7,
        Stem::Small => 3,
    };
    let channels = shape.map(|shape| shape.channels);
    let mut list = TensorList::new("Resnet");
    list.convolution("stem", [channels, Some(resnet.width)], kernel);
    let mut inputs = resnet.width;
    for (stage, blocks) in (0..).zip(resnet.blocks().unwrap_or_default()) {
        let outputs = resnet.stage_outputs(stage);
        let inner = resnet.width << stage;
        for block in 0..blocks {
            let path = format!("stages.{stage}.{block}");
            let convolutions = match resnet.has_bottlenecks() {
                true => vec![
                    ([inputs, inner], 1),
                    ([inner, inner], 3),
                    ([inner, outputs], 1),
                ],
                false => vec![([inputs, outputs], 3), ([outputs, outputs], 3)],
            };
            for (at, (channels, kernel)) in convolutions.into_iter().enumerate() {
                let path = format!("{path}.convolutions.{at}");
                list.convolution(&path, channels.map(Some), kernel);
            }
            // The first block of each stage but the first halves the image.
            if inputs != outputs || (stage > 0 && block == 0) {
                let path = format!("{path}.shortcut");
                list.convolution(&path, [inputs, outputs].map(Some), 1);
            }
            inputs = outputs;
        }
    }
    let classes = shape.map(|shape| shape.classes);
    list.add("head.weight", &[classes, Some(inputs)]);
    list.add("head.bias", &[classes]);
    list
}

fn of_seq2seq(model: &Seq2seq, tokens: Option<u64>) -> TensorList {
    let width = model.d_model;
    let mut list = TensorList::new("Seq2seq");
    list.add("token_table", &[tokens, Some(width)]);
    let stacks = [
        ("encoder", model.encoder_layers),
        ("decoder", model.decoder_layers),
    ];
    for (stack, layers) in stacks {
        let attentions = match stack {
            "encoder" => vec!["attention"],
            _ => vec!["attention", "cross_attention"],
        };
        for layer in 0..layers {
            for attention in &attentions {
                let path = |part: &str| format!("{stack}.blocks.{layer}.{attention}.{part}");
                let inner = model.num_heads * model.d_kv;
                list.known(path("norm"), [width]);
                for part in ["queries", "keys", "values"] {
                    list.known(path(part), [inner, width]);
                }
                list.known(path("output.weight"), [width, inner]);
            }
            let path = |part: &str| format!("{stack}.blocks.{layer}.feed_forward.{part}");
            list.known(path("norm"), [width]);
            list.known(path("widening.weight"), [model.d_ff, width]);
            list.known(path("projection.weight"), [width, model.d_ff]);
        }
        let buckets = [model.relative_buckets, model.num_heads];
        list.known(format!("{stack}.positions.table"), buckets);
        list.known(format!("{stack}.final_norm"), [width]);
    }
    list
}
