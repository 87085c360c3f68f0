//! Whether two machines are one, by what launches recorded of them. In: ids and the processor's
//! model. Out: the difference in words.

use serde_json::Value;

use super::{run_file::Launch, trials::host_id_kind};

/// The facts that tell a machine from others; `None` where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineTraces<'a> {
    /// Id of the boot, which containers on one host share.
    pub boot_id: Option<&'a str>,
    pub host_id: Option<&'a str>,
    /// Id of the installation, which copies of an image share.
    pub machine_id: Option<&'a str>,
    pub cpu_model: Option<&'a str>,
}

impl<'a> MachineTraces<'a> {
    /// The facts that a launch recorded.
    pub fn of(launch: &'a Launch) -> Self {
        Self {
            boot_id: Some(launch.anchor.boot_id.as_str()).filter(|id| !id.is_empty()),
            host_id: launch.host_id.as_deref(),
            machine_id: launch.machine_id.as_deref(),
            cpu_model: cpu_model(launch),
        }
    }

    /// How this machine differs from the one here; `None` if both are one, or it cannot be decided.
    ///
    /// The same boot means the same machine. Then the host ids decide, where both were made in one
    /// way. Without them another processor or another machine id means another machine. Machines of
    /// one image share the machine id, and processors of one model share a name, so equal ones prove
    /// nothing.
    pub fn difference(&self, here: &MachineTraces<'_>) -> Option<String> {
        let differing = |there: Option<&str>, here: Option<&str>| {
            let (there, here) = there.zip(here).filter(|(there, here)| there != here)?;
            Some(format!("{there} there, {here} here"))
        };
        if self.boot_id.is_some() && self.boot_id == here.boot_id {
            return None;
        }
        if let (Some(there), Some(here)) = (self.host_id, here.host_id)
            && host_id_kind(there) == host_id_kind(here)
        {
            return (there != here).then(|| format!("host id {there} there, {here} here"));
        }
        differing(self.cpu_model, here.cpu_model).or_else(|| {
            let ids = differing(self.machine_id, here.machine_id)?;
            Some(format!("machine id {ids}"))
        })
    }
}

/// The processor's model that a launch recorded.
pub fn cpu_model(launch: &Launch) -> Option<&str> {
    launch.machine.pointer("/cpu/model").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_processor_is_another_machine_unless_boot_or_host_are_one() {
        let here = MachineTraces {
            boot_id: Some("now"),
            host_id: Some("net-1"),
            machine_id: Some("aaa"),
            cpu_model: Some("Xeon"),
        };
        let cloned = MachineTraces {
            boot_id: Some("then"),
            host_id: None,
            cpu_model: Some("EPYC"),
            ..here
        };
        let told = |there: MachineTraces<'_>| there.difference(&here);
        assert_eq!(told(cloned).as_deref(), Some("EPYC there, Xeon here"));
        let rest = [
            MachineTraces {
                cpu_model: Some("Xeon"),
                ..cloned
            },
            MachineTraces {
                cpu_model: None,
                ..cloned
            },
            MachineTraces {
                boot_id: Some("now"),
                ..cloned
            },
            // A new processor in the same host.
            MachineTraces {
                host_id: Some("net-1"),
                ..cloned
            },
            MachineTraces::default(),
        ];
        for there in rest {
            assert_eq!(told(there), None, "{there:?}");
        }
        let unknown = MachineTraces::default();
        assert_eq!(unknown.difference(&unknown), None);
    }
}
