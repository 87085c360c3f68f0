use super::*;

fn read(text: &str) -> Result<Node, String> {
    match read_text_as_tree(text, &"x.yaml".into()) {
        Ok(read) if read.problems.is_empty() => Ok(read.tree),
        Ok(read) => Err(read
            .problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")),
        Err(problems) => Err(problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")),
    }
}

#[test]
fn well_behaved_text_reads_as_serde_yaml_reads_it() {
    let text = "a: 1\nb: [1.5, two, \"three\", null, true]\nc:\n  d: {e: 0x10, f: 1e-3}\n  g: \
                |\n    one\n    two\nh: &x [1]\ni: *x\nj: -3\n";
    let ours = read(text).unwrap().to_json();
    let theirs: serde_json::Value = serde_yaml::from_str(text).unwrap();
    assert_eq!(ours, theirs);
}

#[test]
fn crlf_and_byte_order_mark_change_nothing() {
    let tree = read("\u{feff}a: 1\r\nb:\r\n  c: 2\r\n").unwrap();
    assert_eq!(tree.to_json(), serde_json::json!({"a": 1, "b": {"c": 2}}));
    assert_eq!(
        tree.get_path(&["b", "c"]).unwrap().location.position,
        Some((3, 6))
    );
    assert_eq!(tree.entry("a").unwrap().key_location.position, Some((1, 1)));
}

#[test]
fn faults_of_the_text_name_their_place() {
    assert_eq!(
        read("a: {b: 1, b: 2}\n").unwrap_err(),
        "x.yaml:1:11: duplicate key `a.b`; it is first given on line 1, keep one of them"
    );
    assert!(
        read("a: 1\n<<: {b: 2}\n")
            .unwrap_err()
            .contains("x.yaml:2:1: merge keys (`<<`) are not supported; use `extends`")
    );
    assert!(
        read("a: 1\n---\nb: 2\n")
            .unwrap_err()
            .contains("a second document begins here")
    );
    assert!(
        read("8: 1\n")
            .unwrap_err()
            .contains("x.yaml:1:1: a key must be text; `8` is not")
    );
    assert!(
        read("a:\n\tb: 1\n")
            .unwrap_err()
            .contains("x.yaml:2:1: the indentation contains a tab")
    );
    assert!(
        read("a:\n  b: mlp\n  # a comment\n\tc: 1\n")
            .unwrap_err()
            .contains("x.yaml:4:1: the indentation contains a tab")
    );
    assert!(read("a: !!str 8\n").unwrap_err().contains("the tag `"));
    assert!(
        read("a: [1, 2\nb: 3\n")
            .unwrap_err()
            .contains("not valid YAML")
    );
    assert!(read("# nothing\n").unwrap_err().contains("is empty"));
    assert!(
        read("a: &x [*x]\n")
            .unwrap_err()
            .contains("inside the value it names")
    );
}

#[test]
fn deep_nesting_and_growing_aliases_are_plain_errors() {
    let deep = format!("a: {}{}", "[".repeat(5000), "]".repeat(5000));
    assert!(
        read(&deep)
            .unwrap_err()
            .contains("nested more than 64 deep")
    );
    let blocks: String = (0..5000)
        .map(|level| format!("{}a:\n", " ".repeat(level)))
        .collect();
    assert!(
        read(&blocks)
            .unwrap_err()
            .contains("nested more than 64 deep")
    );
    let wide: String = (0..5000).map(|key| format!("k{key}: 1\n")).collect();
    assert!(
        read(&wide)
            .unwrap_err()
            .starts_with("x.yaml:1:1: a map here has more than 1000 keys")
    );
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    assert!(
        read(&laughs)
            .unwrap_err()
            .contains("holds more than 100000 values")
    );
}

#[test]
fn what_kiln_wrote_is_refused_for_its_depth_before_it_is_read() {
    let brackets = format!("a: {}", "[".repeat(40_000));
    let spread = format!("a:\n{}", "  [\n".repeat(40_000));
    let dashes = "- ".repeat(40_000);
    for text in [brackets, spread, dashes] {
        let refused = crate::spec::read_yaml::<serde_json::Value>(&text).unwrap_err();
        assert!(refused.contains("nested more than 64 deep"), "{refused}");
    }
    let allowed = format!("a: {}1{}", "[".repeat(63), "]".repeat(63));
    assert!(crate::spec::read_yaml::<serde_json::Value>(&allowed).is_ok());
}

#[test]
fn the_text_of_aliases_is_counted_before_it_is_copied() {
    // A gigabyte, in a file of 110 kB.
    let long = "x".repeat(100_000);
    let many = vec!["*a"; 10_000].join(", ");
    let text = format!("a: &a {long}\nb: [{many}]\n");
    let error = read(&text).unwrap_err();
    assert!(
        error.starts_with("x.yaml:2:")
            && error.contains(
                "it has more than the 16.0 MiB allowed for the text of an experiment file with its \
             aliases written out; set KILN_LIMIT_YAML_TEXT_BYTES=33554432 to allow more"
            ),
        "{error}"
    );
    // Keys count as well, and the copies that nested anchors keep.
    let keys = format!("a: &a {{{long}: 1}}\nb: [{many}]\n");
    assert!(read(&keys).unwrap_err().contains("YAML_TEXT_BYTES"));
    let nested: String = (0..60).map(|level| format!("[&b{level} ")).collect();
    let nested = format!("a: {nested}{}{}\n", "x".repeat(500_000), "]".repeat(60));
    assert!(read(&nested).unwrap_err().contains("YAML_TEXT_BYTES"));
    assert!(read(&format!("a: &a {long}\nb: [*a, *a]\n")).is_ok());
}
