//! `kiln schema`: the kept copy is current, and files are judged by it as `kiln check` judges them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path, process::Command};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn printed() -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kiln")).arg("schema").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn read(path: &Path) -> Value {
    serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The YAML files of a folder, fragments in `base/` left out.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let listing = fs::read_dir(folder).map(|listing| listing.flatten().map(|entry| entry.path()).collect::<Vec<_>>()).unwrap_or_default();
    listing.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

#[test]
fn the_kept_schema_is_what_kiln_prints() {
    let kept = root().join("docs/experiment.schema.json");
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::write(&kept, printed()).unwrap();
    }
    assert!(fs::read_to_string(kept).unwrap() == printed(), "run `kiln schema > docs/experiment.schema.json`");
}

/// The schema, ready to hold files against.
struct Validator {
    schemas: boon::Schemas,
    index: boon::SchemaIndex,
}

impl Validator {
    fn new(schema: &Value) -> Self {
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.add_resource("kiln.json", schema.clone()).unwrap();
        let index = compiler.compile("kiln.json", &mut schemas).unwrap();
        Self { schemas, index }
    }

    /// What is wrong with a file, if anything is.
    fn fault(&self, file: &Value) -> Option<String> {
        self.schemas.validate(file, self.index).err().map(|fault| fault.to_string())
    }
}

#[test]
fn the_schema_is_valid_and_describes_every_section() {
    let schema: Value = serde_json::from_str(&printed()).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    // Compiling checks the schema against its own draft's schema.
    Validator::new(&schema);
    for name in ["kiln", "name", "description", "extends"] {
        assert!(schema["properties"][name]["description"].as_str().is_some_and(|text| text.len() > 10), "{name}");
    }
}

#[test]
fn experiments_and_good_files_validate_and_carry_the_hint() {
    let schema: Value = serde_json::from_str(&printed()).unwrap();
    let validator = Validator::new(&schema);
    let mut checked = 0;
    for path in files(&root().join("experiments")).into_iter().chain(files(&root().join("tests/experiments/good"))) {
        assert_eq!(validator.fault(&read(&path)), None, "{}", path.display());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# yaml-language-server: $schema=") && text.contains("docs/experiment.schema.json\n"), "{}", path.display());
        checked += 1;
    }
    assert!(checked >= 2);
}

#[test]
fn the_schema_refuses_what_it_can_see() {
    let schema: Value = serde_json::from_str(&printed()).unwrap();
    let validator = Validator::new(&schema);
    for name in
        ["unknown-keys", "ranges", "types", "choices", "other-kind", "sweep-keys", "sweep-lists", "future-values", "name-pattern", "initial-weights"]
    {
        let path = root().join(format!("tests/experiments/bad/{name}.yaml"));
        assert!(validator.fault(&read(&path)).is_some(), "{name}");
    }
}

/// Files that need no other, and the same on top of one that may give the rest.
#[test]
fn what_a_section_needs_is_required_of_a_file_that_stands_alone() {
    let schema: Value = serde_json::from_str(&printed()).unwrap();
    let validator = Validator::new(&schema);
    let fault = |lines: &str| validator.fault(&serde_yaml::from_str(&format!("{{kiln: 1, name: x, {lines}}}")).unwrap());
    for lines in ["data: {kind: text}, model: {kind: mlp}", "model: {d_model: 8}", "model: {kind: mlp}, train: {target: {}}"] {
        assert!(fault(lines).is_some(), "{lines}");
        assert_eq!(fault(&format!("extends: a.yaml, {lines}")), None, "{lines}");
    }
    assert_eq!(fault("data: {kind: text, path: a.txt}, model: {kind: mlp}, train: {target: {valid_loss: 2.0}}, run: null"), None);
}

#[test]
fn lengths_of_time_are_judged_as_the_check_judges_them() {
    let schema: Value = serde_json::from_str(&printed()).unwrap();
    let validator = Validator::new(&schema);
    let fits = |span: &str| {
        let file = serde_json::json!({"kiln": 1, "name": "x", "model": {"kind": "matmul"}, "run": {"timeout": span}});
        validator.fault(&file).is_none()
    };
    for span in ["500ms", "2s", "30m", "1h 30m", "1h30m", "1.5h", "90 minutes", "1 hour, 5 secs", "01:30:00", "PT90S", "3us", "3 µs"] {
        assert!(kiln::units::TimeSpan::parse(span).is_ok() && fits(span), "{span}");
    }
    for span in ["banana", "5", "", "3 parsecs", "-3s", "h", "m 3"] {
        assert!(kiln::units::TimeSpan::parse(span).is_err() && !fits(span), "{span}");
    }
}
