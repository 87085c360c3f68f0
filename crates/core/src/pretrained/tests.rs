use super::*;
use crate::kinds::data::ImageShape;

fn model(text: &str) -> Model {
    serde_yaml::from_str(text).unwrap()
}

fn weights(without: &[&str]) -> InitialWeights {
    InitialWeights {
        path: "w.safetensors".to_owned(),
        sha256: String::new(),
        without: without.iter().map(|part| (*part).to_owned()).collect(),
    }
}

const IMAGES: Option<InputShape> = Some(InputShape::Images(ImageShape {
    channels: 3,
    height: 32,
    width: 32,
    classes: 4,
}));

/// The header that a checkpoint of a model has; `name` gives its tensors their names.
fn header(text: &str, input: Option<InputShape>, name: &dyn Fn(&str) -> String) -> WeightsHeader {
    let known = |(path, shape): (String, TensorShape)| {
        let shape: Vec<u64> = shape.into_iter().map(Option::unwrap).collect();
        (name(&path), shape)
    };
    WeightsHeader {
        shapes: tensors(&model(text), input)
            .unwrap()
            .into_iter()
            .map(known)
            .collect(),
        ..WeightsHeader::default()
    }
}

fn checked(
    header: WeightsHeader,
    text: &str,
    without: &[&str],
    input: Option<InputShape>,
) -> Result<(), String> {
    let path = Path::new("/nowhere/w.safetensors");
    let fit = WeightsFit::new(path, header, &weights(without), &model(text), None)?;
    fit.check(input)
}

const GPT: &str = "{kind: gpt, d_model: 8, num_layers: 2, num_heads: 2, seq_len: 4, vocabulary: 9}";

#[test]
fn a_file_of_another_model_is_found_by_its_header() {
    let file = || header(GPT, None, &str::to_owned);
    assert_eq!(checked(file(), GPT, &[], None), Ok(()));
    let refused = |from: &str, to: &str| checked(file(), &GPT.replace(from, to), &[], None);
    for (from, to, what) in [
        (
            "vocabulary: 9",
            "vocabulary: 7",
            "`Gpt.token_table` has shape [9, 8], and the model's parameter [7, 8]; set `model` as it \
             was when they were trained, or name another file in `train.initial_weights`, or add \
             `without: [embedding]` there",
        ),
        (
            "num_layers: 2",
            "num_layers: 3",
            "`Gpt.blocks.2.attention_norm.weight` is missing",
        ),
        (
            "num_layers: 2",
            "num_layers: 1",
            "are not parameters of the model",
        ),
        (
            "seq_len: 4",
            "seq_len: 5",
            "`Gpt.position_table` has shape [4, 8], and the model's parameter [5, 8]",
        ),
    ] {
        let message = refused(from, to).unwrap_err();
        assert!(message.contains(what), "{message}");
    }
    assert_eq!(refused("seq_len: 4", "seq_len: 3"), Ok(()));
    let other = GPT.replace("vocabulary: 9", "vocabulary: 7");
    assert_eq!(checked(file(), &other, &["embedding"], None), Ok(()));
    // Where the data's vocabulary is not known, the rest is compared.
    let open = GPT.replace(", vocabulary: 9", "");
    assert_eq!(checked(file(), &open, &[], None), Ok(()));
    let heads = WeightsHeader {
        metadata: [(
            MODEL.to_owned(),
            "{\"kind\":\"gpt\",\"num_heads\":4}".to_owned(),
        )]
        .into(),
        ..file()
    };
    let message = checked(heads, GPT, &[], None).unwrap_err();
    assert!(message.contains("`model.num_heads` was 4"), "{message}");
}

#[test]
fn a_resnet_of_torchvision_is_compared_under_its_names() {
    let small = "{kind: resnet, depth: 18, width: 2, stem: small}";
    let thousand = Some(InputShape::Images(ImageShape {
        classes: 1000,
        ..IMAGES.unwrap().images().unwrap()
    }));
    let theirs = |path: &str| names::of(&model(small), without_kind(path)).unwrap();
    let file = || {
        let mut file = header(small, thousand, &theirs);
        file.shapes
            .insert("bn1.num_batches_tracked".to_owned(), Vec::new());
        file
    };
    assert_eq!(checked(file(), small, &[], thousand), Ok(()));
    assert_eq!(checked(file(), small, &["head"], IMAGES), Ok(()));
    let message = checked(file(), small, &[], IMAGES).unwrap_err();
    assert!(
        message.contains("`fc.weight` has shape [1000, 16], and the model's parameter [4, 16]")
            && message.contains("or add `without: [head]` there"),
        "{message}"
    );
    let mut backbone = file();
    backbone.shapes.retain(|name, _| !name.starts_with("fc."));
    assert_eq!(checked(backbone, small, &["head"], IMAGES), Ok(()));
    let deeper = small.replace("18", "34");
    let message = checked(file(), &deeper, &["head"], IMAGES).unwrap_err();
    assert!(message.contains("is missing"), "{message}");
}

#[test]
fn the_token_table_of_a_t5_is_left_out_with_its_own_head() {
    let small = "{kind: seq2seq, d_model: 4, d_kv: 2, d_ff: 4, encoder_layers: 1, \
                 decoder_layers: 1, num_heads: 2, vocabulary: 9}";
    let theirs = |path: &str| names::of(&model(small), without_kind(path)).unwrap();
    let mut file = header(small, None, &theirs);
    file.shapes.insert("lm_head.weight".to_owned(), vec![9, 4]);
    let other = small.replace("vocabulary: 9", "vocabulary: 7");
    let path = Path::new("/nowhere/w.safetensors");
    let named = weights(&["embedding"]);
    let fit = WeightsFit::new(path, file.clone(), &named, &model(&other), None).unwrap();
    assert_eq!(fit.check(None), Ok(()));
    for name in ["shared.weight", "lm_head.weight"] {
        assert!(fit.is_left_out(name), "{name}");
    }
    assert!(!fit.is_left_out("encoder.final_layer_norm.weight"));
    let message = checked(file.clone(), &other, &[], None).unwrap_err();
    assert!(message.contains("`without: [embedding]`"), "{message}");
    // The table again is not a head of its own.
    let fit = WeightsFit::new(path, file, &weights(&[]), &model(small), None).unwrap();
    assert_eq!(fit.check_copies(None, &|_, _| true), Ok(()));
    let message = fit.check_copies(None, &|_, _| false).unwrap_err();
    assert!(
        message.contains("`lm_head.weight` is a head of its own")
            && message.contains("`without: [embedding]`"),
        "{message}"
    );
}

#[test]
fn a_format_that_is_not_read_is_named_where_the_model_takes_the_tensor() {
    let file = |tensor: &str, format: &str| {
        let mut file = header(GPT, None, &str::to_owned);
        file.formats.insert(tensor.to_owned(), format.to_owned());
        file
    };
    let table = "Gpt.token_table";
    for format in ["F32", "F16", "BF16"] {
        assert_eq!(checked(file(table, format), GPT, &[], None), Ok(()));
    }
    let message = checked(file(table, "F64"), GPT, &[], None).unwrap_err();
    assert!(
        message.ends_with("`Gpt.token_table` is F64; save the file's tensors in f32, f16 or bf16"),
        "{message}"
    );
    assert_eq!(
        checked(file(table, "F64"), GPT, &["embedding"], None),
        Ok(())
    );
}

#[test]
fn a_part_is_offered_to_be_left_out_only_where_all_else_fits() {
    let file = || header(GPT, None, &str::to_owned);
    let other = GPT.replace("vocabulary: 9", "vocabulary: 7");
    let message = |text: &str| checked(file(), text, &[], None).unwrap_err();
    assert!(message(&other).contains("`without: [embedding]`"));
    for unfit in [
        GPT.replace("d_model: 8", "d_model: 4"),
        other.replace("num_layers: 2", "num_layers: 3"),
        other.replace("num_layers: 2", "num_layers: 1"),
    ] {
        let message = message(&unfit);
        assert!(
            message.contains("`Gpt.token_table` has shape") && !message.contains("without"),
            "{message}"
        );
    }
}

#[test]
fn a_file_of_another_kind_of_model_is_named_as_such() {
    let about = |kind: &str| WeightsHeader {
        metadata: [(
            MODEL.to_owned(),
            format!("{{\"kind\":\"{kind}\",\"num_heads\":2}}"),
        )]
        .into(),
        ..header(GPT, None, &str::to_owned)
    };
    assert_eq!(checked(about("gpt"), GPT, &[], None), Ok(()));
    let mlp = "{kind: mlp, vocabulary: 9}";
    let message = checked(about("gpt"), mlp, &[], None).unwrap_err();
    assert!(
        message.contains("the file holds a model of kind `gpt`, and `model.kind` is `mlp`; set"),
        "{message}"
    );
}
