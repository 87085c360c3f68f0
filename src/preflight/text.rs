//! Formats a diagnosis as text and as JSON. One line per check, its remedy below; the last line is
//! the conclusion.

use kiln_core::{
    record::{Check, CheckState},
    units::without_controls,
};
use serde_json::{Value, json};

use super::{Diagnosis, PreflightPlace};

/// Version of the JSON.
const DOCTOR: u32 = 1;

/// Format of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextStyle {
    pub has_color: bool,
}

/// Returns the page, with a final line feed.
pub fn page(diagnosis: &Diagnosis, style: TextStyle) -> String {
    let widest = diagnosis
        .checks
        .iter()
        .map(|check| check.label().chars().count())
        .max()
        .unwrap_or(0);
    let mut page = String::new();
    for check in &diagnosis.checks {
        page.push_str(&format!(
            "{}  {:<widest$}  {}\n",
            state(check.state, style),
            without_controls(&check.label()),
            without_controls(&check.evidence)
        ));
        if let Some(remedy) = &check.remedy {
            page.push_str(&format!(
                "{:9}{:widest$}  -> {}\n",
                "",
                "",
                without_controls(remedy)
            ));
        }
    }
    page.push_str(&format!("\n{}\n", summary(diagnosis)));
    page
}

/// Returns the state, padded to the width of the longest one.
fn state(state: CheckState, style: TextStyle) -> String {
    let word = format!("{state:<7}");
    let color = match state {
        CheckState::Ok => "32",
        CheckState::Skipped | CheckState::Unknown => "2",
        CheckState::Warning => "33",
        CheckState::Problem => "31;1",
    };
    if style.has_color {
        format!("\u{1b}[{color}m{word}\u{1b}[0m")
    } else {
        word
    }
}

fn count(checks: &[Check], state: CheckState) -> usize {
    checks.iter().filter(|check| check.state == state).count()
}

fn summary(diagnosis: &Diagnosis) -> String {
    let counted = |number: usize, what: &str| {
        format!("{number} {what}{}", if number == 1 { "" } else { "s" })
    };
    let (problems, warnings) = (
        count(&diagnosis.checks, CheckState::Problem),
        count(&diagnosis.checks, CheckState::Warning),
    );
    let verdict = match (diagnosis.can_run, diagnosis.subject) {
        (true, PreflightPlace::Cluster) => "workers can be submitted to this cluster".to_owned(),
        (false, PreflightPlace::Cluster) => {
            "workers cannot be submitted to this cluster".to_owned()
        }
        (false, PreflightPlace::Machine { .. }) => "this machine cannot run trials".to_owned(),
        (
            true,
            PreflightPlace::Machine {
                usable_gpus,
                has_gpus,
            },
        ) => match (usable_gpus, has_gpus) {
            (0, true) => "this machine can run trials, on the CPU only (`--device cpu`)".to_owned(),
            (0, false) => "this machine can run trials, on the CPU".to_owned(),
            (gpus, _) => format!("this machine can run trials, on {}", counted(gpus, "GPU")),
        },
    };
    format!(
        "{verdict}: {}, {}",
        counted(problems, "problem"),
        counted(warnings, "warning")
    )
}

/// Returns the diagnosis as JSON.
pub fn json(diagnosis: &Diagnosis) -> Value {
    let usable_gpus = match diagnosis.subject {
        PreflightPlace::Machine { usable_gpus, .. } => Some(usable_gpus),
        PreflightPlace::Cluster => None,
    };
    json!({
        "kiln_doctor": DOCTOR,
        "can_run": diagnosis.can_run,
        "usable_gpus": usable_gpus,
        "problems": count(&diagnosis.checks, CheckState::Problem),
        "warnings": count(&diagnosis.checks, CheckState::Warning),
        "checks": diagnosis.checks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis() -> Diagnosis {
        let checks = vec![
            Check::ok("driver", "590.48.01 is loaded"),
            Check::warning("power-limit", "450 W", "raise it\nnow").of_gpu(12),
            Check::problem("cuda", "the device count is 0", "see the driver"),
        ];
        Diagnosis {
            checks,
            can_run: true,
            subject: PreflightPlace::Machine {
                usable_gpus: 0,
                has_gpus: false,
            },
        }
    }

    #[test]
    fn lines_are_aligned_and_a_remedy_stands_beneath_its_check() {
        let page = page(&diagnosis(), TextStyle { has_color: false });
        let expected = "\
ok       driver              590.48.01 is loaded
warning  GPU 12 power-limit  450 W
                             -> raise it now
problem  cuda                the device count is 0
                             -> see the driver

this machine can run trials, on the CPU: 1 problem, 1 warning
";
        assert_eq!(page, expected);
        let cpu_alone = super::page(
            &Diagnosis {
                subject: PreflightPlace::Machine {
                    usable_gpus: 0,
                    has_gpus: true,
                },
                ..diagnosis()
            },
            TextStyle { has_color: false },
        );
        assert!(
            cpu_alone.contains("on the CPU only (`--device cpu`): 1 problem"),
            "{cpu_alone}"
        );
    }

    #[test]
    fn color_is_added_around_the_state_alone() {
        let colored = page(&diagnosis(), TextStyle { has_color: true });
        assert!(
            colored.starts_with("\u{1b}[32mok     \u{1b}[0m  driver"),
            "{colored:?}"
        );
    }

    #[test]
    fn programs_get_the_same_checks() {
        let value = json(&Diagnosis {
            can_run: false,
            ..diagnosis()
        });
        assert_eq!(
            (
                &value["can_run"],
                &value["checks"][1]["gpu"],
                &value["checks"][1]["state"]
            ),
            (&json!(false), &json!(12), &json!("warning"))
        );
        assert!(value["checks"][0].get("remedy").is_none());
    }
}
