use std::fs;

use kiln_core::pretrained::GPT2_HEAD;
use kiln_data::files::sha256_of;
use safetensors::{Dtype, tensor::TensorView};

use super::*;

/// Names and shapes of a GPT-2 of width 2 with one block, 3 tokens and 4 positions, as Hugging Face's
/// `save_pretrained` writes them.
fn tensors_of_gpt2() -> Vec<(String, Vec<usize>)> {
    let named = |name: &str, shape: &[usize]| (format!("transformer.{name}"), shape.to_vec());
    let mut all = vec![named("wte.weight", &[3, 2]), named("wpe.weight", &[4, 2])];
    for norm in ["h.0.ln_1", "h.0.ln_2", "ln_f"] {
        all.extend(["weight", "bias"].map(|which| named(&format!("{norm}.{which}"), &[2])));
    }
    for (layer, sizes) in [
        ("attn.c_attn", [2, 6]),
        ("attn.c_proj", [2, 2]),
        ("mlp.c_fc", [2, 8]),
        ("mlp.c_proj", [8, 2]),
    ] {
        all.push(named(&format!("h.0.{layer}.weight"), &sizes));
        all.push(named(&format!("h.0.{layer}.bias"), &sizes[1..]));
    }
    all
}

/// Writes a file of these tensors, each of which counts from 0.
fn written(folder: &Path, tensors: &[(String, Vec<usize>)]) -> InitialWeights {
    let counted = |shape: &[usize]| -> Vec<u8> {
        (0..shape.iter().product::<usize>())
            .flat_map(|at| (at as f32).to_le_bytes())
            .collect()
    };
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|(_, shape)| counted(shape)).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape), bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
        (name.as_str(), view)
    });
    let path = folder.join("model.safetensors");
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let (sha256, _) = sha256_of(&path, Path::new("")).unwrap();
    InitialWeights {
        path: path.display().to_string(),
        sha256,
        without: Vec::new(),
    }
}

fn gpt(keys: &str) -> kinds::Model {
    let text = format!("{{kind: gpt, d_model: 2, num_layers: 1, num_heads: 1, {keys}}}");
    serde_yaml::from_str(&text).unwrap()
}

#[test]
fn each_tensor_of_a_gpt2_has_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let weights = written(folder.path(), &tensors_of_gpt2());
    let found = Pretrained::read(&weights, &gpt("seq_len: 3, tie_head: false"), None).unwrap();
    let values = |path: &str, shape: &[usize]| found.values(&format!("Gpt.{path}"), shape).unwrap();
    // [2, 6] becomes [6, 2].
    assert_eq!(
        values("blocks.0.attention.queries_keys_values.weight", &[6, 2]),
        [0.0, 6.0, 1.0, 7.0, 2.0, 8.0, 3.0, 9.0, 4.0, 10.0, 5.0, 11.0]
    );
    assert_eq!(
        values("blocks.0.attention.projection.weight", &[2, 2]),
        [0.0, 2.0, 1.0, 3.0]
    );
    assert_eq!(
        values("blocks.0.mlp.projection.weight", &[2, 8])[..4],
        [0.0, 2.0, 4.0, 6.0]
    );
    assert_eq!(values("blocks.0.mlp.widening.bias", &[8])[..2], [0.0, 1.0]);
    // The first three positions of four; and the tokens, which are also the head.
    let rows = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    for table in ["position_table", "token_table", "head"] {
        assert_eq!(values(table, &[3, 2]), rows, "{table}");
    }
    let refused = |path: &str, shape: &[usize]| found.values(path, shape).unwrap_err().to_string();
    for (message, what) in [
        (
            refused("Gpt.blocks.0.mlp.widening.weight", &[16, 2]),
            "`transformer.h.0.mlp.c_fc.weight` has shape [2, 8], and the model's parameter [2, 16]",
        ),
        (
            refused("Gpt.blocks.1.mlp_norm.weight", &[2]),
            "`transformer.h.1.ln_2.weight` is missing",
        ),
        (
            refused("Gpt.position_table", &[5, 2]),
            "`transformer.wpe.weight` has shape [4, 2], and the model's parameter [5, 2]",
        ),
        (
            found.all_taken().unwrap_err().to_string(),
            "others are not parameters of the model",
        ),
    ] {
        assert!(message.contains(what), "{message}");
    }
    let notices = found.into_notices().join("\n");
    assert!(
        notices.contains("has 4 positions, and `model.seq_len` is 3; the first 3 are used")
            && notices.contains("no readable `config.json` beside them"),
        "{notices}"
    );
}

#[test]
fn a_head_of_its_own_needs_a_model_that_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let head = |rows: usize| {
        [
            tensors_of_gpt2(),
            vec![(GPT2_HEAD.to_owned(), vec![rows, 2])],
        ]
        .concat()
    };
    for (rows, is_equal) in [(3, true), (4, false)] {
        let weights = written(folder.path(), &head(rows));
        let found = Pretrained::read(&weights, &gpt("seq_len: 4"), None).unwrap();
        assert_eq!(found.is_needless(GPT2_HEAD), is_equal, "{rows} rows");
        assert_eq!(found.fit.name_of("Gpt.head"), GPT2_HEAD);
    }
}

/// Heads, activation and epsilon, which the shapes of the weights do not show.
#[test]
fn the_config_beside_a_gpt2_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let weights = written(folder.path(), &tensors_of_gpt2());
    let read = |config: &str| {
        fs::write(folder.path().join("config.json"), config).unwrap();
        Pretrained::read(&weights, &gpt("seq_len: 4"), None)
            .map(Pretrained::into_notices)
            .map_err(|error| error.to_string())
    };
    let of = |keys: &str| {
        read(&format!(
            "{{\"model_type\": \"gpt2\", \"n_head\": 1{keys}}}"
        ))
    };
    let exact = ", \"activation_function\": \"gelu\", \"layer_norm_epsilon\": 1e-05";
    assert_eq!(of(exact), Ok(Vec::new()));
    for approximate in ["", ", \"activation_function\": \"gelu_pytorch_tanh\""] {
        let notices = of(approximate).unwrap();
        assert!(
            notices.len() == 1 && notices[0].contains("kiln computes the exact GELU"),
            "{notices:?}"
        );
    }
    for (keys, what) in [
        (
            ", \"activation_function\": \"relu\"",
            "`activation_function` is \"relu\"",
        ),
        (
            ", \"layer_norm_epsilon\": 1e-06",
            "`layer_norm_epsilon` is 1e-6",
        ),
        (
            ", \"scale_attn_weights\": false",
            "`scale_attn_weights` is false",
        ),
        (
            ", \"scale_attn_by_inverse_layer_idx\": true",
            "`scale_attn_by_inverse_layer_idx` is true",
        ),
    ] {
        let refused = of(keys).unwrap_err();
        assert!(refused.contains(what), "{refused}");
    }
    let heads = read("{\"model_type\": \"gpt2\", \"n_head\": 2}").unwrap_err();
    assert!(
        heads.contains("`n_head` is 2") && heads.contains("`model.num_heads` is 1; set it to 2"),
        "{heads}"
    );
    // A configuration without its kind or its heads is read as `transformers` reads a GPT-2's.
    assert_eq!(read("{\"n_head\": 2}"), Err(heads));
    let default = read("{\"model_type\": \"gpt2\"}").unwrap_err();
    assert!(default.contains("`n_head` is 12"), "{default}");
    assert_eq!(read("{\"kiln_export\": 1}"), Ok(Vec::new()));
    let other = read("{\"model_type\": \"imagegpt\", \"n_head\": 2}").unwrap();
    assert!(
        other.len() == 1 && other[0].contains("has `model_type: imagegpt`"),
        "{other:?}"
    );
}

/// A published backbone has the head of its own classes, or none.
#[test]
fn a_resnet_of_torchvision_is_read_without_its_head() {
    let folder = tempfile::tempdir().unwrap();
    let model: kinds::Model = serde_yaml::from_str("{kind: resnet, depth: 18, width: 1}").unwrap();
    let stem = ("conv1.weight".to_owned(), vec![1, 3, 7, 7]);
    let head = [
        ("fc.weight".to_owned(), vec![4, 8]),
        ("fc.bias".to_owned(), vec![4]),
    ];
    for tensors in [
        vec![stem.clone()],
        [vec![stem.clone()], head.to_vec()].concat(),
    ] {
        let whole = written(folder.path(), &tensors);
        let found = Pretrained::read(&whole, &model, None).unwrap();
        let refused = found
            .replacement("Resnet.head.weight", &[3, 8])
            .unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("or add `without: [head]` there"),
            "{refused}"
        );
        let weights = InitialWeights {
            without: vec!["head".to_owned()],
            ..whole
        };
        let found = Pretrained::read(&weights, &model, None).unwrap();
        let values = found.replacement("Resnet.stem.weight", &[1, 3, 7, 7]);
        assert_eq!(values.unwrap().unwrap().len(), 147);
        assert!(found.all_taken().is_err(), "no head was asked for");
        assert_eq!(
            found.replacement("Resnet.head.weight", &[3, 8]).unwrap(),
            None
        );
        found.all_taken().unwrap();
    }
}

#[test]
fn other_classes_of_an_export_are_noticed_unless_the_head_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("config.json"),
        "{\"classes\": [\"cat\", \"dog\"]}",
    )
    .unwrap();
    let labels = Labels {
        key: "classes",
        part: "head",
        names: ["dog", "cat"].map(str::to_owned).to_vec(),
    };
    let said = |without: &[&str]| {
        let named = InitialWeights {
            path: folder
                .path()
                .join("model.safetensors")
                .display()
                .to_string(),
            sha256: String::new(),
            without: without.iter().map(|part| (*part).to_owned()).collect(),
        };
        other_labels(&named, &labels)
    };
    assert!(
        said(&[])
            .unwrap()
            .contains("`dog` begins with the values of `cat`")
    );
    assert_eq!(said(&["head"]), None);
}
