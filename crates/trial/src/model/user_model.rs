//! Users' own models: the trait that one implements, and the registry in which a program names
//! those it has. Input: the `custom` model of a trial file. Output: the built model, or an error
//! that names the wrong key.

use std::{collections::BTreeMap, fmt};

use burn::{module::Module, tensor::Tensor};
use kiln_core::kinds::{Custom, InputShape};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{BoxedModel, Init, Input};
use crate::{
    engine::{Ops, RunningStats},
    error::TrialError,
};

/// A model of your own.
///
/// It is walked by the optimizers through burn's `Module`: what is to be trained is a `Param` with
/// at most 8 axes, and every one of them must take part in the outputs.
pub trait OwnModel: Module + 'static {
    /// Outputs [targets, outputs]: for text, a row of logits over the vocabulary per token, batch ×
    /// time of them; for images a row of logits over the classes per image; for a panel one number
    /// per window. `with` has the precision and whether this is training.
    fn forward(&self, input: Input, ops: Ops) -> Tensor<2>;

    /// The running statistics of its norms, by names of the model's choice: checkpoints store them
    /// besides the parameters.
    fn running_stats(&self) -> Vec<(String, RunningStats)> {
        Vec::new()
    }

    /// Model FLOPs of one sample, forward and backward, recomputation excluded; `None` leaves
    /// `flops_per_sample` and `mfu` empty.
    fn flops_per_sample(&self) -> Option<u64> {
        None
    }
}

/// The samples that a model reads, as far as it must know them to be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    pub shape: InputShape,
    /// Tokens or rows per sample; 1 for images.
    pub seq_len: usize,
}

type Builder = dyn Fn(&Value, Samples, &Init) -> Result<BoxedModel, TrialError>;

/// The users' own models that a program has, by name.
///
/// ```no_run
/// # use kiln_trial::{Registry, model::{Init, Input, OwnModel, Samples}, engine::Ops, TrialError};
/// # use kiln_trial::burn::{self, module::Module, tensor::Tensor};
/// # #[derive(Module, Debug)] struct Mine { width: usize }
/// # impl OwnModel for Mine { fn forward(&self, _: Input, _: Ops) -> Tensor<2> { unimplemented!() } }
/// #[derive(serde::Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Fields {
///     width: usize,
/// }
///
/// fn build(fields: Fields, samples: Samples, init: &Init) -> Result<Mine, TrialError> {
///     Ok(Mine { width: fields.width })
/// }
///
/// fn main() -> std::process::ExitCode {
///     kiln_trial::main(Registry::new().with("mine", build))
/// }
/// ```
#[derive(Default)]
pub struct Registry {
    builders: BTreeMap<String, Box<Builder>>,
}

impl Registry {
    /// A registry without models: that of `kiln-trial` itself.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a model of this name; `build` makes it of the keys that the experiment file gives
    /// besides kiln's own. A later model of the same name takes the place of an earlier one.
    pub fn with<F, M>(
        mut self,
        name: &str,
        build: impl Fn(F, Samples, &Init) -> Result<M, TrialError> + 'static,
    ) -> Self
    where
        F: DeserializeOwned,
        M: OwnModel,
    {
        let builder = move |fields: &Value, samples: Samples, init: &Init| {
            BoxedModel::new(build(read_fields(fields)?, samples, init)?)
        };
        self.builders.insert(name.to_owned(), Box::new(builder));
        self
    }

    /// Errors: no model of that name, a key that it does not take, data that its builder refuses.
    pub(super) fn build(
        &self,
        custom: &Custom,
        shape: InputShape,
        init: &Init,
    ) -> Result<BoxedModel, TrialError> {
        let Some(builder) = self.builders.get(&custom.name) else {
            return Err(self.unknown(&custom.name));
        };
        let samples = Samples {
            shape,
            seq_len: custom.seq_len.unwrap_or(1) as usize,
        };
        builder(&Value::Object(custom.fields.clone()), samples, init)
    }

    fn unknown(&self, name: &str) -> TrialError {
        let known: Vec<String> = self
            .builders
            .keys()
            .map(|name| format!("`{name}`"))
            .collect();
        TrialError::Bad(if known.is_empty() {
            format!(
                "`model.name` is `{name}`, and this program has only kiln's own models; set \
                 KILN_TRIAL to a program that has it"
            )
        } else {
            format!(
                "`model.name` is `{name}`; this program has {}",
                known.join(", ")
            )
        })
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.builders.keys()).finish()
    }
}

/// The owner's keys as the owner's type.
fn read_fields<F: DeserializeOwned>(fields: &Value) -> Result<F, TrialError> {
    F::deserialize(fields).map_err(|error| {
        let words = error.to_string();
        let path = culprit(fields, &words, &|fields| {
            F::deserialize(fields).err().map(|error| error.to_string())
        });
        TrialError::Bad(in_words(&path, &words, fields))
    })
}

/// The path of the key that an error is about: serde says only what is wrong with its value. Keys
/// are read in order and the first fault ends the reading, so it is the one without which there is
/// another error, or none.
fn culprit(fields: &Value, words: &str, fault: &dyn Fn(&Value) -> Option<String>) -> Vec<String> {
    let mut path: Vec<String> = Vec::new();
    while let Some(Value::Object(map)) = fields.pointer(&pointer(&path)) {
        let is_at_fault = |key: &&String| {
            let mut without = fields.clone();
            if let Some(Value::Object(map)) = without.pointer_mut(&pointer(&path)) {
                map.shift_remove(*key);
            }
            fault(&without).as_deref() != Some(words)
        };
        let Some(key) = map.keys().find(is_at_fault).cloned() else {
            break;
        };
        path.push(key);
    }
    path
}

/// Keys have no character that a JSON pointer would escape.
fn pointer(path: &[String]) -> String {
    path.iter().map(|key| format!("/{key}")).collect()
}

/// Rewords serde's error: the key first, then the value found and the allowed values.
fn in_words(path: &[String], words: &str, fields: &Value) -> String {
    if let Some((name, _)) = words
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split_once('`'))
    {
        return format!("the key `{name}` is missing in `model`; the model needs it");
    }
    let key = path.join(".");
    if let Some((_, expected)) = words
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once("`, "))
    {
        let allowed = expected
            .replacen("expected one of", "the model takes", 1)
            .replacen("expected", "the model takes", 1);
        return format!("unknown key `model.{key}`; {allowed}");
    }
    match fields.pointer(&pointer(path)).filter(|_| !path.is_empty()) {
        Some(found) => format!("`model.{key}` is `{found}`: {words}"),
        None => format!("the keys of `model` do not fit: {words}"),
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::{ModuleMapper, ModuleVisitor, Param},
        tensor::Device,
    };
    use serde::Deserialize;

    use super::*;
    use crate::model::{Linear, Network};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fields {
        width: usize,
        #[serde(default)]
        stem: Stem,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Stem {
        kernel: Option<usize>,
    }

    #[derive(Module, Debug)]
    struct Mine {
        hidden: Linear,
        scale: Param<Tensor<3>>,
        head: Linear,
    }

    impl OwnModel for Mine {
        fn forward(&self, input: Input, ops: Ops) -> Tensor<2> {
            let Input::Images(images) = input else {
                panic!("it reads images")
            };
            let hidden = self.hidden.forward(images.flatten::<2>(1, 3), ops)
                * self.scale.val().flatten::<2>(1, 2);
            self.head.forward(hidden, ops)
        }

        fn flops_per_sample(&self) -> Option<u64> {
            Some(6 * self.num_params() as u64)
        }
    }

    fn build(fields: Fields, samples: Samples, init: &Init) -> Result<Mine, TrialError> {
        let InputShape::Images(shape) = samples.shape else {
            return Err(TrialError::Bad("it reads images".to_owned()));
        };
        let inputs = (shape.channels * shape.height * shape.width) as usize;
        let width = fields.width * fields.stem.kernel.unwrap_or(1);
        Ok(Mine {
            hidden: Linear::uniform(init, "hidden", [inputs, width]),
            scale: init.ones([1, 1, width]),
            head: Linear::uniform(init, "head", [width, shape.classes as usize]),
        })
    }

    fn built(keys: &str) -> Result<BoxedModel, String> {
        let custom: Custom =
            serde_yaml::from_str(&format!("{{name: mine, reads: images, {keys}}}")).unwrap();
        let shape = InputShape::Images(kiln_core::kinds::data::ImageShape {
            channels: 1,
            height: 4,
            width: 4,
            classes: 3,
        });
        let init = Init {
            seed: 1,
            device: Device::flex().autodiff(),
        };
        Registry::new()
            .with("mine", build)
            .build(&custom, shape, &init)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_that_the_model_does_not_take_is_named_with_its_section() {
        let cases = [
            (
                "widht: 3",
                "unknown key `model.widht`; the model takes `width` or `stem`",
            ),
            (
                "stem: {kernel: 3}",
                "the key `width` is missing in `model`; the model needs it",
            ),
            (
                "width: wide",
                r#"`model.width` is `"wide"`: invalid type: string "wide", expected usize"#,
            ),
            (
                "width: -3",
                "`model.width` is `-3`: invalid value: integer `-3`, expected usize",
            ),
            (
                "width: 3, stem: {kernel: big}",
                r#"`model.stem.kernel` is `"big"`: invalid type: string "big", expected usize"#,
            ),
            (
                "width: 3, stem: {stride: 2}",
                "unknown key `model.stem.stride`; the model takes `kernel`",
            ),
        ];
        for (keys, expected) in cases {
            assert_eq!(built(keys).unwrap_err(), expected, "{keys}");
        }
    }

    #[test]
    fn a_name_that_the_program_does_not_have_is_refused_with_those_that_it_has() {
        let custom: Custom = serde_yaml::from_str("{name: other, reads: images}").unwrap();
        let shape = InputShape::Text { vocabulary: 3 };
        let init = Init {
            seed: 1,
            device: Device::flex().autodiff(),
        };
        let refused = |registry: Registry| {
            registry
                .build(&custom, shape, &init)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused(Registry::new().with("mine", build)),
            "`model.name` is `other`; this program has `mine`"
        );
        assert!(refused(Registry::new()).ends_with("set KILN_TRIAL to a program that has it"));
    }

    /// Path and elements of each parameter.
    #[derive(Default)]
    struct Seen {
        at: Vec<String>,
        found: Vec<(String, usize, usize)>,
    }

    impl ModuleVisitor for Seen {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.at.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.at.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.found
                .push((self.at.join("."), D, param.val().shape().num_elements()));
        }
    }

    struct Doubled;

    impl ModuleMapper for Doubled {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| (tensor.detach().inner() * 2.0).autodiff().require_grad())
        }
    }

    #[test]
    fn walks_cross_the_box_with_every_parameter_its_path_and_its_axes() {
        let network = Network::Own(built("width: 5").unwrap());
        let mut seen = Seen::default();
        network.visit(&mut seen);
        let expected = [
            ("hidden.weight", 2, 80),
            ("hidden.bias", 1, 5),
            ("scale", 3, 5),
            ("head.weight", 2, 15),
            ("head.bias", 1, 3),
        ];
        assert_eq!(
            seen.found,
            expected.map(|(path, axes, count)| (format!("Own.{path}"), axes, count))
        );
        assert_eq!(network.num_params(), 108);
        assert_eq!(network.valid().num_params(), 108);
    }

    #[test]
    fn a_mapped_model_computes_with_the_new_values_and_its_clone_with_the_old() {
        let ops = Ops::new(
            kiln_core::spec::Engine::Flex,
            kiln_core::spec::Precision::F32,
        )
        .unwrap();
        let outputs = |model: &BoxedModel| -> Vec<f32> {
            let images = Tensor::ones([2, 1, 4, 4], &Device::flex().autodiff());
            model
                .forward(Input::Images(images), ops)
                .into_data()
                .try_to_vec()
                .unwrap()
        };
        let model = built("width: 5").unwrap();
        let (before, copy) = (outputs(&model), model.clone());
        let doubled = model.map(&mut Doubled);
        assert_eq!(outputs(&copy), before);
        assert_ne!(outputs(&doubled), before);
        assert_eq!(doubled.flops_per_sample(), Some(648));
    }
}
