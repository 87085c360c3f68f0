//! A browser for tests of the report's page, and what it noticed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use headless_chrome::{
    Browser, LaunchOptions, Tab,
    protocol::cdp::{
        Emulation::{MediaFeature, SetDeviceMetricsOverride, SetEmulatedMedia},
        Page::CaptureScreenshotFormatOption,
        types::Event,
    },
};
use serde_json::Value;

/// A page in a browser of its own.
pub(crate) struct Page {
    pub(crate) tab: Arc<Tab>,
    heard: Arc<Mutex<Vec<String>>>,
    // The browser ends with it.
    _browser: Browser,
}

/// The browser to use; `None` where `KILN_BROWSER=none` leaves these tests out.
fn program() -> Option<PathBuf> {
    match std::env::var_os("KILN_BROWSER") {
        Some(none) if none == "none" => {
            let _ = writeln!(std::io::stderr(), "left out: KILN_BROWSER is none");
            return None;
        }
        Some(named) => return Some(named.into()),
        None => {}
    }
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file());
    assert!(found.is_some(), "there is no Chromium; `make browser` installs one, and KILN_BROWSER=none leaves these tests out");
    found
}

impl Page {
    /// Opens a file; `None` where these tests are left out.
    pub(crate) fn open(file: &Path) -> Option<Self> {
        let path = program();
        let options = LaunchOptions {
            path: Some(path?),
            // Root has no sandbox, and the page is kiln's own.
            sandbox: false,
            idle_browser_timeout: Duration::from_secs(120),
            ..LaunchOptions::default()
        };
        let browser = Browser::new(options).unwrap();
        let tab = browser.new_tab().unwrap();
        tab.set_default_timeout(Duration::from_secs(60));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&heard);
        tab.enable_log().unwrap().enable_runtime().unwrap();
        tab.add_event_listener(Arc::new(move |event: &Event| {
            let told = match event {
                Event::LogEntryAdded(entry) => format!("{:?}", entry.params.entry),
                Event::RuntimeExceptionThrown(thrown) => format!("{:?}", thrown.params.exception_details),
                Event::RuntimeConsoleAPICalled(call) => format!("{:?}", call.params),
                _ => return,
            };
            ear.lock().unwrap().push(told);
        }))
        .unwrap();
        tab.navigate_to(&format!("file://{}", file.canonicalize().unwrap().display())).unwrap().wait_until_navigated().unwrap();
        Some(Self { tab, heard, _browser: browser })
    }

    /// As a screen of this size shows it, by day or by night.
    pub(crate) fn on(&self, width: u32, height: u32, scheme: &str) {
        let metrics = serde_json::json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.tab.call_method(serde_json::from_value::<SetDeviceMetricsOverride>(metrics).unwrap()).unwrap();
        let feature = MediaFeature { name: "prefers-color-scheme".to_owned(), value: scheme.to_owned() };
        self.tab.call_method(SetEmulatedMedia { media: None, features: Some(vec![feature]) }).unwrap();
    }

    /// What an expression comes to.
    pub(crate) fn ask(&self, expression: &str) -> Value {
        let asked = format!("(async () => JSON.stringify(await ({expression})))()");
        let told = self.tab.evaluate(&asked, true).unwrap_or_else(|error| unreachable!("{expression}: {error}"));
        let text = told.value.as_ref().and_then(Value::as_str).map(str::to_owned);
        text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
    }

    /// Errors, warnings and words of programs that the page caused.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    /// What axe finds wrong: the rule, what it asks, and where.
    pub(crate) fn barriers(&self) -> Vec<String> {
        let axe = Path::new(env!("CARGO_MANIFEST_DIR")).join(".browser/axe.min.js");
        assert!(axe.is_file(), "{} is not there; `make browser` fetches it", axe.display());
        self.tab.evaluate(&fs::read_to_string(axe).unwrap(), false).unwrap();
        let found = self.ask("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => `${v.id}: ${v.help}: ` + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + ' ' + n.failureSummary).join(' | ')))");
        serde_json::from_value(found).unwrap()
    }

    /// For people: where `KILN_SCREENSHOTS` names a folder, the whole page as it looks now.
    pub(crate) fn show(&self, name: &str) {
        let Some(folder) = std::env::var_os("KILN_SCREENSHOTS").map(PathBuf::from) else { return };
        let height = self.ask("document.documentElement.scrollHeight").as_u64().unwrap_or(1000).min(9000) as u32;
        let width = self.ask("innerWidth").as_u64().unwrap_or(1000) as u32;
        let metrics = serde_json::json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.tab.call_method(serde_json::from_value::<SetDeviceMetricsOverride>(metrics).unwrap()).unwrap();
        let picture = self.tab.capture_screenshot(CaptureScreenshotFormatOption::Png, None, None, true).unwrap();
        fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    }
}
