//! A GPU, or an instance of one, that trials may use.

use serde::Serialize;

/// One GPU, as nvidia-smi numbers it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LeasedGpu {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// Limit that the driver enforced when its last trial began; before one, when the launch began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    /// The GPU of a MIG instance and the place in it; `None` for a whole GPU.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceFacts>,
    /// `enabled` or `disabled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_mode: Option<String>,
}

/// Place of a MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InstanceFacts {
    /// UUID of the whole GPU.
    pub board_uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// Whether they are one device: its power limit may have changed between two readings.
impl PartialEq for LeasedGpu {
    fn eq(&self, other: &Self) -> bool {
        self.uuid == other.uuid
    }
}

impl LeasedGpu {
    /// UUID of the GPU that has the power, the clocks and the temperature: that of the device
    /// itself, unless it is a MIG instance.
    pub fn board_uuid(&self) -> &str {
        self.instance
            .as_ref()
            .map_or(&self.uuid, |instance| &instance.board_uuid)
    }

    /// Whether a whole UUID names it: its own, that of its GPU (CUDA then takes the GPU's first
    /// instance), or the older `MIG-GPU-<uuid of the GPU>/<GPU instance>/<compute instance>`.
    pub fn is_named(&self, uuid: &str) -> bool {
        self.uuid == uuid
            || self.board_uuid() == uuid
            || self
                .instance
                .as_ref()
                .is_some_and(|instance| instance.older_name() == uuid)
    }
}

impl InstanceFacts {
    /// Its name with drivers before R470, which CUDA still accepts.
    pub fn older_name(&self) -> String {
        format!(
            "MIG-{}/{}/{}",
            self.board_uuid, self.gpu_instance, self.compute_instance
        )
    }
}

impl From<kiln_hardware::MigInstance> for InstanceFacts {
    fn from(found: kiln_hardware::MigInstance) -> Self {
        Self {
            board_uuid: found.board_uuid,
            gpu_instance: found.gpu_instance,
            compute_instance: found.compute_instance,
        }
    }
}

impl From<kiln_hardware::DeviceFacts> for LeasedGpu {
    fn from(found: kiln_hardware::DeviceFacts) -> Self {
        let mode = |is_enabled: bool| if is_enabled { "enabled" } else { "disabled" };
        Self {
            index: found.index,
            mig_profile: found.mig_profile().map(str::to_owned),
            instance: found.instance.map(InstanceFacts::from),
            uuid: found.uuid,
            name: found
                .name
                .into_value()
                .unwrap_or_else(|| "NVIDIA GPU".to_owned()),
            memory_total_bytes: found.memory_total_bytes.into_value(),
            power_limit_watts: found.power_limit_watts.into_value(),
            ecc_mode: found
                .is_ecc_enabled
                .into_value()
                .map(|is_enabled| mode(is_enabled).to_owned()),
        }
    }
}
