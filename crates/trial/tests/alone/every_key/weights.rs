//! Trained parameters of a small MLP over 70 tokens, for runs that begin with them.

use std::{fs, path::Path};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

const SHAPES: [(&str, &[usize]); 5] = [
    ("Mlp.hidden.bias", &[16]),
    ("Mlp.hidden.weight", &[16, 64]),
    ("Mlp.output.bias", &[70]),
    ("Mlp.output.weight", &[70, 16]),
    ("Mlp.token_table", &[70, 8]),
];

/// A safetensors file: the length of a header in JSON, the header, the numbers.
fn file() -> Vec<u8> {
    let mut header = Map::<String, Value>::new();
    let mut numbers = Vec::new();
    for (name, shape) in SHAPES {
        let (from, count) = (numbers.len(), shape.iter().product::<usize>());
        numbers.extend((0..count).flat_map(|at| ((at % 13) as f32 / 13.0 - 0.5).to_le_bytes()));
        header.insert(
            name.to_owned(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [from, numbers.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &numbers,
    ]
    .concat()
}

pub(crate) fn write(path: &Path) {
    fs::write(path, file()).unwrap();
}

/// As the experiment file has it.
pub(crate) fn sha256() -> String {
    hex::encode(Sha256::digest(file()))
}
