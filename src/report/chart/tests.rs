use super::*;

fn lines(label: &str) -> Chart {
    let marks = vec![
        ChartMark {
            interval: Some((90.0, 110.0)),
            ..ChartMark::at(4.0, 100.0)
        },
        ChartMark::at(8.0, 150.0),
        ChartMark::at(16.0, f64::NAN),
    ];
    let line = ChartLine {
        label: label.to_owned(),
        detail: String::new(),
        color: 0,
        shape: MarkShape::Marked,
        marks,
    };
    let picture = Lines {
        x: ChartAxis::of_values("train.batch_size", &["4", "8", "16"]),
        y: ChartAxis::from_zero("Throughput, samples/s", [100.0, 150.0]),
        lines: vec![line],
        bands: vec![Band {
            label: "window",
            color: 0,
            from: -5.0,
            to: 900.0,
        }],
        is_low: false,
    };
    Chart {
        name: "x".into(),
        title: format!("Throughput of {label}"),
        caption: String::new(),
        picture: Picture::Lines(picture),
    }
}

#[test]
fn a_line_has_its_marks_its_interval_its_ticks_and_its_name() {
    let svg = lines("two workers").svg();
    assert!(
        svg.starts_with("<svg role=\"img\" data-by=\"kiln\" width=\"840\"")
            && svg.trim_end().ends_with("</svg>"),
        "{svg}"
    );
    assert_eq!(
        svg.matches("<polygon").count(),
        3,
        "two marks and one in the legend; a number that is none is not drawn: {svg}"
    );
    assert!(
        svg.contains("two workers\n") && svg.contains("train.batch_size\n"),
        "{svg}"
    );
    for tick in ["4", "8", "16", "0", "50", "100", "150"] {
        assert!(
            svg.contains(&format!(">\n{tick}\n</text>")),
            "{tick}: {svg}"
        );
    }
    // The band is cut at the picture's rim.
    let widths: Vec<i32> = svg
        .split(" width=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next()?.parse().ok())
        .collect();
    assert!(
        widths.iter().all(|width| (0..=840).contains(width)),
        "{widths:?}"
    );
}

#[test]
fn lines_without_marks_have_some_where_only_their_color_would_tell_them_apart() {
    let marks = |shapes: &[(usize, MarkShape)]| {
        let line = |(color, shape): &(usize, MarkShape)| ChartLine {
            label: format!("learning_rate {color}"),
            detail: String::new(),
            color: *color,
            shape: *shape,
            marks: (0..60).map(|x| ChartMark::at(f64::from(x), 1.0)).collect(),
        };
        let mut chart = lines("x");
        let Picture::Lines(picture) = &mut chart.picture else {
            panic!("{:?}", chart.picture);
        };
        picture.lines = shapes.iter().map(line).collect();
        chart.svg().matches("<polygon").count()
    };
    use MarkShape::{Marked, Plain};
    assert_eq!(marks(&[(0, Plain)]), 0);
    assert_eq!(marks(&[(0, Plain), (0, Plain)]), 0, "two runs of a point");
    assert_eq!(marks(&[(0, Plain), (1, Plain)]), 2 * 6 + 2);
    // Validation has marks of its own, and the legend shows them.
    let with_validation = [(0, Plain), (0, Marked), (1, Plain), (1, Marked)];
    assert_eq!(marks(&with_validation), 2 * 60 + 2);
}

#[test]
fn a_hostile_name_is_words_and_no_markup() {
    let hostile = "</text><script>alert(1)</script>\n\u{1b}[31m";
    let mut heat = Heat {
        quantity: hostile.into(),
        column_key: hostile.into(),
        columns: vec![hostile.into()],
        row_key: hostile.into(),
        rows: vec![hostile.into()],
        cells: vec![],
    };
    heat.cells = vec![vec![Some(HeatCell {
        value: 1.0,
        text: hostile.into(),
    })]];
    let bars = Bars {
        quantity: hostile.into(),
        parts: vec!["weights"],
        bars: vec![ChartBar {
            name: hostile.into(),
            parts: vec![1.0],
            total: 1.0,
        }],
    };
    let chart = |picture| Chart {
        name: "x".into(),
        title: hostile.into(),
        caption: String::new(),
        picture,
    };
    for svg in [
        lines(hostile).svg(),
        chart(Picture::Heat(heat)).svg(),
        chart(Picture::Bars(bars)).svg(),
    ] {
        assert!(!svg.contains("<script") && !svg.contains('\u{1b}'), "{svg}");
        assert_eq!(
            svg.matches("<text").count(),
            svg.matches("</text>").count(),
            "{svg}"
        );
    }
}

#[test]
fn every_colour_of_a_picture_has_one_for_dark_pages_but_those_of_fields() {
    let svg = lines("x").svg();
    let rules = dark_rules();
    let colors = svg.split('"').filter(|text| text.starts_with('#'));
    for color in colors {
        assert!(rules.contains(&format!("[fill=\"{color}\"]")), "{color}");
    }
}

#[test]
fn bars_are_as_long_as_their_parts_together() {
    let bar = |parts: Vec<f64>| ChartBar {
        name: "b".into(),
        total: parts.iter().sum(),
        parts,
    };
    let bars = Bars {
        quantity: "Memory, GiB".into(),
        parts: vec!["weights", "rest"],
        bars: vec![bar(vec![1.0, 3.0]), bar(vec![1.0, 0.0])],
    };
    let chart = Chart {
        name: "x".into(),
        title: "Memory".into(),
        caption: String::new(),
        picture: Picture::Bars(bars),
    };
    let svg = chart.svg();
    let width_of = |color: &str| -> Vec<i32> {
        let of = svg.lines().filter(|line| {
            line.starts_with("<rect") && line.contains(color) && line.contains("height=\"30\"")
        });
        of.filter_map(|line| {
            line.split(" width=\"")
                .nth(1)?
                .split('"')
                .next()?
                .parse()
                .ok()
        })
        .collect()
    };
    let (weights, rest) = (width_of("#0B5FCE"), width_of("#C2410C"));
    assert_eq!(
        (weights[0], weights[0] + rest[0], rest[1]),
        (weights[1], 694, 0),
        "{svg}"
    );
    assert!(weights[0] > 170 && weights[0] < 176, "{weights:?}");
}

#[test]
fn each_value_of_a_picture_stands_where_its_mark_is_drawn() {
    let chart = lines("two workers");
    let values = chart.values();
    assert_eq!(
        (values.x.as_str(), values.y.as_str()),
        ("train.batch_size", "Throughput, samples/s")
    );
    let [series] = &values.series[..] else {
        panic!("{values:?}");
    };
    assert_eq!(series.label, "two workers");
    assert_eq!(series.text(), "4: 100 (90 to 110)\n8: 150");
    let svg = chart.svg();
    let drawn = format!("points=\"{} \"", series.places());
    assert!(svg.contains(&drawn), "{drawn}: {svg}");
}

#[test]
fn a_value_of_a_field_or_a_bar_stands_in_its_cell_and_names_its_parts() {
    let cell = |value: f64| {
        Some(HeatCell {
            value,
            text: "1.23".into(),
        })
    };
    let heat = Heat {
        quantity: "Throughput, samples/s".into(),
        column_key: "workers".into(),
        columns: vec!["0".into(), "2".into()],
        row_key: "batch".into(),
        rows: vec!["8".into()],
        cells: vec![vec![cell(1234.5), None]],
    };
    let chart = |picture| Chart {
        name: "x".into(),
        title: "X".into(),
        caption: String::new(),
        picture,
    };
    let field = chart(Picture::Heat(heat));
    let row = &field.values().series[0];
    assert_eq!(
        (row.label.as_str(), row.text().as_str()),
        ("batch 8", "0: 1234.5\n2: –")
    );
    let (x, y) = row.values[0].at;
    let svg = field.svg();
    let drawn = format!("<text x=\"{x}\" y=\"{y}\"");
    assert!(
        svg.contains(&drawn),
        "the number in the cell, {drawn}: {svg}"
    );
    let bars = Bars {
        quantity: "Memory, GiB".into(),
        parts: vec!["weights", "gradients", "rest"],
        bars: vec![ChartBar {
            name: "batch 8".into(),
            parts: vec![1.0, 0.0, 3.0],
            total: 4.0,
        }],
    };
    let bars = chart(Picture::Bars(bars)).values();
    assert_eq!(bars.series[0].text(), "batch 8: 4 (weights 1, rest 3)");
}
