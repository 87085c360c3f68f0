//! What the machine did: the host and its NVIDIA devices, read whole (a snapshot) or on a timer (samples).
