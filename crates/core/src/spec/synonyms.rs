//! The vocabulary of other tools, for "did you mean": one table for keys, one for values.

use super::suggest::nearest;

/// Keys as other tools name them, in small letters with `_`, each with the keys that kiln has for
/// it; of several, the one that the map around it has is meant.
const KEYS: &[(&str, &[&str])] = &[
    ("accumulate_grad_batches", &["train.grad_accumulation"]),
    ("accumulation_steps", &["train.grad_accumulation"]),
    ("adam_beta1", &["train.optimizer.beta1"]),
    ("adam_beta2", &["train.optimizer.beta2"]),
    ("adam_epsilon", &["train.optimizer.epsilon"]),
    ("amp", &["train.precision"]),
    ("arch", &["model.kind"]),
    ("architecture", &["model.kind"]),
    ("autocast", &["train.precision"]),
    ("backend", &["run.engine"]),
    ("batch", &["train.batch_size"]),
    ("block_size", &["model.seq_len"]),
    ("bs", &["train.batch_size"]),
    ("clip_grad", &["train.clip_norm"]),
    ("clip_grad_norm", &["train.clip_norm"]),
    ("cmd", &["model.argv"]),
    ("command", &["model.argv"]),
    ("context", &["model.seq_len"]),
    ("context_length", &["model.seq_len"]),
    ("data_dir", &["data.path"]),
    ("data_path", &["data.path"]),
    ("dataset", &["data", "data.kind"]),
    ("dataset_path", &["data.path"]),
    ("dim", &["model.d_model"]),
    ("dir", &["data.path"]),
    ("directory", &["data.path"]),
    ("drop_rate", &["model.dropout"]),
    ("dropout_rate", &["model.dropout"]),
    ("dtype", &["train.precision"]),
    ("early_stopping", &["train.early_stop"]),
    ("emb_size", &["model.d_model"]),
    ("embed_dim", &["model.d_model"]),
    ("embedding_dim", &["model.d_model"]),
    ("embedding_size", &["model.d_model"]),
    ("eps", &["train.optimizer.epsilon"]),
    ("eval", &["train.evaluate"]),
    ("eval_every", &["train.evaluate.every"]),
    ("eval_interval", &["train.evaluate.every"]),
    ("eval_steps", &["train.evaluate.every"]),
    ("evaluation", &["train.evaluate"]),
    ("ffn_dim", &["model.d_ff"]),
    ("file", &["data.path"]),
    ("filename", &["data.path"]),
    ("folder", &["data.path"]),
    ("gpu", &["run.devices"]),
    ("gpus", &["run.devices"]),
    ("grad_clip", &["train.clip_norm"]),
    ("grad_clip_norm", &["train.clip_norm"]),
    ("grad_norm_clip", &["train.clip_norm"]),
    ("gradient_accumulation", &["train.grad_accumulation"]),
    ("gradient_accumulation_steps", &["train.grad_accumulation"]),
    ("gradient_clip_val", &["train.clip_norm"]),
    ("gradient_clipping", &["train.clip_norm"]),
    ("heads", &["model.num_heads"]),
    ("hidden_dim", &["model.hidden", "model.d_model"]),
    ("hidden_size", &["model.hidden", "model.d_model"]),
    ("image_dim", &["data.image_size"]),
    ("img_size", &["data.image_size"]),
    ("layers", &["model.num_layers", "model.depth"]),
    ("learning_rate_scheduler", &["train.learning_rate_schedule"]),
    ("log_interval", &["measure.log_every"]),
    ("logging_steps", &["measure.log_every"]),
    ("loss_scale", &["train.precision"]),
    ("lr", &["train.optimizer.learning_rate"]),
    ("lr_schedule", &["train.learning_rate_schedule"]),
    ("lr_scheduler", &["train.learning_rate_schedule"]),
    ("lr_scheduler_type", &["train.learning_rate_schedule.kind"]),
    ("max_epochs", &["train.epochs"]),
    ("max_grad_norm", &["train.clip_norm"]),
    ("max_iters", &["train.steps"]),
    ("max_len", &["model.seq_len", "data.max_prompt_tokens"]),
    ("max_length", &["model.seq_len", "data.max_prompt_tokens"]),
    ("max_seq_len", &["model.seq_len"]),
    ("max_seq_length", &["model.seq_len"]),
    ("max_steps", &["train.steps"]),
    ("micro_batch_size", &["train.batch_size"]),
    ("mixed_precision", &["train.precision"]),
    ("model_name", &["model.kind"]),
    ("model_type", &["model.kind"]),
    ("n_ctx", &["model.seq_len"]),
    ("n_embd", &["model.d_model"]),
    ("n_epochs", &["train.epochs"]),
    ("n_head", &["model.num_heads"]),
    ("n_heads", &["model.num_heads"]),
    ("n_hidden", &["model.hidden"]),
    ("n_layer", &["model.num_layers"]),
    ("n_layers", &["model.num_layers"]),
    ("n_positions", &["model.seq_len"]),
    ("n_steps", &["train.steps"]),
    ("nhead", &["model.num_heads"]),
    ("nheads", &["model.num_heads"]),
    ("nhid", &["model.hidden"]),
    ("ninp", &["model.d_model"]),
    ("nlayers", &["model.num_layers"]),
    ("num_attention_heads", &["model.num_heads"]),
    ("num_classes", &["data.classes"]),
    ("num_epochs", &["train.epochs"]),
    ("num_hidden_layers", &["model.num_layers"]),
    ("num_iterations", &["train.steps"]),
    ("num_steps", &["train.steps"]),
    ("num_trials", &["sweep.sample.count"]),
    ("n_trials", &["sweep.sample.count"]),
    ("num_train_epochs", &["train.epochs"]),
    ("optim", &["train.optimizer"]),
    ("per_device_train_batch_size", &["train.batch_size"]),
    ("prefetch_factor", &["data.prefetch"]),
    ("random_seed", &["train.seed"]),
    ("random", &["sweep.sample"]),
    ("resolution", &["data.image_size"]),
    ("root", &["data.path"]),
    ("run", &["model.argv"]),
    ("save_every", &["train.checkpoint.every_steps"]),
    ("save_steps", &["train.checkpoint.every_steps"]),
    ("scheduler", &["train.learning_rate_schedule"]),
    ("search_space", &["sweep.grid"]),
    ("parameters", &["sweep.grid"]),
    ("seeds", &["sweep.repeats"]),
    ("sequence_length", &["model.seq_len"]),
    ("test_size", &["data.valid_fraction"]),
    ("threads", &["train.cpu_threads"]),
    ("tie_weights", &["model.tie_head"]),
    ("tie_word_embeddings", &["model.tie_head"]),
    ("tied", &["model.tie_head"]),
    (
        "type",
        &[
            "model.kind",
            "data.kind",
            "train.optimizer.kind",
            "train.learning_rate_schedule.kind",
        ],
    ),
    ("val_split", &["data.valid_fraction"]),
    ("validation", &["train.evaluate"]),
    ("validation_split", &["data.valid_fraction"]),
    ("vocab", &["model.vocabulary"]),
    ("vocab_size", &["model.vocabulary"]),
    ("warmup", &["train.learning_rate_schedule.warmup_steps"]),
    (
        "warmup_iters",
        &["train.learning_rate_schedule.warmup_steps"],
    ),
    ("wd", &["train.optimizer.weight_decay"]),
    ("weights", &["train.initial_weights"]),
    ("workers", &["data.num_workers"]),
];

/// Values as other tools name them, in small letters with `_`, by the key.
const VALUES: &[(&str, &str, &str)] = &[
    ("model.kind", "gpt2", "gpt"),
    ("model.kind", "gpt_2", "gpt"),
    ("model.kind", "nanogpt", "gpt"),
    ("model.kind", "transformer", "gpt"),
    ("model.kind", "llama", "gpt"),
    ("model.kind", "t5", "seq2seq"),
    ("model.kind", "encoder_decoder", "seq2seq"),
    ("model.kind", "resnet18", "resnet"),
    ("model.kind", "resnet34", "resnet"),
    ("model.kind", "resnet50", "resnet"),
    ("model.kind", "resnet101", "resnet"),
    ("model.kind", "resnet152", "resnet"),
    ("model.kind", "cnn", "resnet"),
    ("model.kind", "rnn", "lstm"),
    ("model.kind", "gru", "lstm"),
    ("data.kind", "wikitext", "wikitext2"),
    ("data.kind", "wikitext_2", "wikitext2"),
    ("data.kind", "wikitext_2_raw_v1", "wikitext2"),
    ("data.kind", "shakespeare", "tinyshakespeare"),
    ("data.kind", "tiny_shakespeare", "tinyshakespeare"),
    ("data.kind", "shakespeare_char", "tinyshakespeare"),
    ("data.kind", "fashionmnist", "fashion-mnist"),
    ("data.kind", "mnist", "fashion-mnist"),
    ("data.kind", "cifar", "cifar10"),
    ("data.kind", "cifar_10", "cifar10"),
    ("data.kind", "imagefolder", "image-folder"),
    ("data.kind", "imagenet", "image-folder"),
    ("data.kind", "images", "image-folder"),
    ("data.kind", "folder", "image-folder"),
    ("data.kind", "csv", "panel-csv"),
    ("data.kind", "timeseries", "panel-csv"),
    ("data.kind", "time_series", "panel-csv"),
    ("data.kind", "jsonl", "sft-jsonl"),
    ("data.kind", "json", "sft-jsonl"),
    ("data.kind", "sft", "sft-jsonl"),
    ("data.kind", "pairs", "sft-jsonl"),
    ("data.kind", "txt", "text"),
    ("data.kind", "textfile", "text"),
    ("data.kind", "random", "generated"),
    ("data.kind", "synthetic", "generated"),
    ("data.kind", "fake", "generated"),
    ("data.tokenizer", "char", "character"),
    ("data.tokenizer", "chars", "character"),
    ("data.tokenizer", "bytes", "byte"),
    ("data.tokenizer", "words", "word"),
    ("train.precision", "32", "f32"),
    ("train.precision", "32_true", "f32"),
    ("train.precision", "float", "f32"),
    ("train.precision", "float32", "f32"),
    ("train.precision", "fp32", "f32"),
    ("train.precision", "full", "f32"),
    ("train.precision", "single", "f32"),
    ("train.precision", "16", "amp-f16"),
    ("train.precision", "16_mixed", "amp-f16"),
    ("train.precision", "amp", "amp-f16"),
    ("train.precision", "amp_fp16", "amp-f16"),
    ("train.precision", "float16", "amp-f16"),
    ("train.precision", "fp16", "amp-f16"),
    ("train.precision", "half", "amp-f16"),
    ("train.precision", "mixed", "amp-bf16"),
    ("train.precision", "mixed_precision", "amp-bf16"),
    ("train.precision", "bf16_mixed", "amp-bf16"),
    ("train.precision", "bfloat16", "bf16"),
    ("train.precision", "tensorfloat32", "tf32"),
    ("train.optimizer.kind", "adam", "adamw"),
    ("train.optimizer.kind", "adamw_torch", "adamw"),
    ("train.optimizer.kind", "momentum", "sgd"),
    ("train.optimizer.kind", "nesterov", "sgd"),
    ("train.learning_rate_schedule.kind", "none", "constant"),
    (
        "train.learning_rate_schedule.kind",
        "cosine_annealing",
        "cosine",
    ),
    (
        "train.learning_rate_schedule.kind",
        "cosineannealinglr",
        "cosine",
    ),
    (
        "train.learning_rate_schedule.kind",
        "linear_warmup",
        "linear",
    ),
    (
        "train.learning_rate_schedule.kind",
        "reduceonplateau",
        "plateau",
    ),
    (
        "train.learning_rate_schedule.kind",
        "reducelronplateau",
        "plateau",
    ),
    (
        "train.learning_rate_schedule.kind",
        "reduce_on_plateau",
        "plateau",
    ),
    ("run.devices", "cuda", "auto"),
    ("run.devices", "gpu", "auto"),
    ("run.engine", "torch", "libtorch"),
    ("run.engine", "pytorch", "libtorch"),
    ("run.engine", "ndarray", "flex"),
    ("sweep.order", "random", "shuffled"),
    ("sweep.order", "sequential", "listed"),
];

fn normal(word: &str) -> String {
    word.to_lowercase().replace(['-', ' '], "_")
}

/// The keys that kiln has for a word of another tool, the most likely first.
pub(super) fn keys(word: &str) -> &'static [&'static str] {
    let word = normal(word);
    KEYS.iter()
        .find(|(known, _)| *known == word)
        .map_or(&[], |(_, keys)| keys)
}

/// The value that a key has for a word of another tool.
pub(super) fn value(key: &str, word: &str) -> Option<&'static str> {
    let word = normal(word);
    VALUES
        .iter()
        .find(|(of, known, _)| *of == key && *known == word)
        .map(|(_, _, value)| *value)
}

/// The value that a misspelt word of another tool stands for, such as `adma`.
pub(super) fn near_value(key: &str, word: &str) -> Option<&'static str> {
    let words = VALUES.iter().filter(|(of, ..)| *of == key);
    value(key, nearest(word, words.map(|(_, known, _)| *known))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{keys, shapes::KeyShape};

    #[test]
    fn the_table_names_keys_and_values_that_exist_and_words_that_do_not() {
        for (word, keys) in KEYS {
            assert_eq!(*word, normal(word));
            for key in *keys {
                assert!(
                    keys::every_key().iter().any(|known| known.path == *key),
                    "{word} -> {key}"
                );
                assert_ne!(key.rsplit('.').next(), Some(*word));
            }
        }
        for (key, word, value) in VALUES {
            assert_eq!(*word, normal(word));
            let any_kind = |_: &str| Vec::new();
            let keys::KeyLookup::Shapes(shapes) = keys::find(key, &any_kind) else {
                // The tokenizer belongs to kinds of text.
                assert_eq!(*key, "data.tokenizer");
                continue;
            };
            let words = match &shapes[0] {
                KeyShape::Choice(words) => words.clone(),
                KeyShape::Any(shapes) => shapes
                    .iter()
                    .flat_map(|shape| match shape {
                        KeyShape::Choice(words) => words.clone(),
                        _ => Vec::new(),
                    })
                    .collect(),
                _ => Vec::new(),
            };
            assert!(words.iter().any(|known| known == value), "{key}: {value}");
            assert!(!words.iter().any(|known| known == word), "{key}: {word}");
        }
    }

    #[test]
    fn writing_does_not_matter() {
        assert_eq!(keys("LR"), ["train.optimizer.learning_rate"]);
        assert_eq!(keys("max-steps"), ["train.steps"]);
        assert_eq!(value("data.kind", "WikiText-2"), Some("wikitext2"));
        assert_eq!(value("train.precision", "FP32"), Some("f32"));
        assert_eq!(value("model.kind", "fp32"), None);
        assert_eq!(near_value("train.optimizer.kind", "adma"), Some("adamw"));
        assert_eq!(near_value("train.optimizer.kind", "lion"), None);
    }
}
