//! A browser for the tests of the report's page: one Chromium for all tests of the executable, and
//! for each test a page in a browser context of its own.
//!
//! It is controlled through `--remote-debugging-pipe`: Chromium reads messages of the DevTools
//! protocol from its file descriptor 3 and writes to 4. Each message is JSON, ended by a zero byte.
//! Source: https://chromedevtools.github.io/devtools-protocol/

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Condvar, LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

/// The longest wait for one answer. It only ends a test that would never end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the browser with its pipes as file descriptors 3 and 4, and removes its profile when it
/// has ended. Standard error gets only the end of what a browser said that failed, because every
/// Chromium complains about services that a container does not have.
const LAUNCHER: &str = r#"trap : INT TERM
profile=$(mktemp -d) || exit
"$@" --user-data-dir="$profile" about:blank 3<&0 4>&1 </dev/null >"$profile/said.txt" 2>&1 || tail -n 5 "$profile/said.txt" >&2
rm -rf "$profile""#;

const ARGUMENTS: [&str; 22] = [
    "--headless",
    "--remote-debugging-pipe",
    // Root has no sandbox, and the page is kiln's own.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--password-store=basic",
    "--disable-breakpad",
    "--disable-dev-shm-usage",
    "--disable-hang-monitor",
    "--disable-popup-blocking",
    "--force-color-profile=srgb",
    // Several pages are open at once, and none of them is in the background.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-features=Translate",
];

/// It is never dropped, because it is a static. It ends all the same: a Chromium whose pipe is
/// closed exits, and the system closes the pipe when the tests end, in whatever way. (A signal upon
/// the parent's death would come too early: it is sent when the thread ends that started the
/// browser, and that is the thread of one test.)
static BROWSER: LazyLock<Browser> = LazyLock::new(Browser::start);

struct Browser {
    messages: Mutex<ChildStdin>,
    /// The number of the next message.
    next: AtomicU64,
    inbox: Arc<(Mutex<Inbox>, Condvar)>,
    _process: Child,
}

/// What the browser has sent and nobody has taken yet.
#[derive(Default)]
struct Inbox {
    /// By the number of the message that they answer.
    answers: HashMap<u64, Value>,
    /// By session, that is by page; in the order in which they came.
    events: HashMap<String, Vec<Value>>,
    has_ended: bool,
}

/// The browser to use.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("KILN_BROWSER") {
        assert!(
            named != "none",
            "KILN_BROWSER is `none`: leave the tests that need a browser out, with `--skip page::`"
        );
        return named.into();
    }
    let folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let found = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("there is no Chromium; `make browser` installs one, or name one in KILN_BROWSER")
    })
}

impl Browser {
    fn start() -> Self {
        let mut launcher = Command::new("sh");
        launcher
            .args(["-c", LAUNCHER, "sh"])
            .arg(program())
            .args(ARGUMENTS);
        let mut process = launcher
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let messages = Mutex::new(process.stdin.take().unwrap());
        let output = process.stdout.take().unwrap();
        let inbox = Arc::new((Mutex::new(Inbox::default()), Condvar::new()));
        let filled = Arc::clone(&inbox);
        thread::spawn(move || receive(output, &filled));
        Self {
            messages,
            next: AtomicU64::new(1),
            inbox,
            _process: process,
        }
    }

    /// Calls a method of the protocol, in the session of a page or of the browser itself, and
    /// returns its result.
    ///
    /// # Errors
    /// The browser refuses the call, has ended, or does not answer in time. The text says what was
    /// called.
    fn call(
        &self,
        session: Option<&str>,
        method: &str,
        parameters: Value,
    ) -> Result<Value, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut message = json!({"id": number, "method": method, "params": parameters});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let written = self.messages.lock().unwrap().write_all(&bytes);
        written.map_err(|error| format!("{method}: the browser does not listen: {error}"))?;
        let mut answer = self.wait_for(method, |inbox| inbox.answers.remove(&number))?;
        match answer.get("error") {
            Some(error) => Err(format!("{method}: {error}")),
            None => Ok(answer["result"].take()),
        }
    }

    /// Waits until `find` finds something in the inbox; `what` names it in the error.
    fn wait_for<T>(
        &self,
        what: &str,
        mut find: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<T, String> {
        let (inbox, news) = &*self.inbox;
        let deadline = Instant::now() + PATIENCE;
        let mut inbox = inbox.lock().unwrap();
        loop {
            if let Some(found) = find(&mut inbox) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if inbox.has_ended {
                return Err(format!("{what}: the browser has ended"));
            }
            if left.is_zero() {
                return Err(format!(
                    "{what}: no answer from the browser within {PATIENCE:?}"
                ));
            }
            inbox = news.wait_timeout(inbox, left).unwrap().0;
        }
    }

    /// The events of a session so far.
    fn events(&self, session: &str) -> Vec<Value> {
        self.inbox
            .0
            .lock()
            .unwrap()
            .events
            .get(session)
            .cloned()
            .unwrap_or_default()
    }
}

/// Sorts messages into the inbox until the browser ends.
fn receive(output: ChildStdout, inbox: &(Mutex<Inbox>, Condvar)) {
    let (inbox, news) = inbox;
    for bytes in BufReader::new(output).split(0).map_while(Result::ok) {
        let Ok(message) = serde_json::from_slice::<Value>(&bytes) else {
            continue;
        };
        let number = message["id"].as_u64();
        let session = message["sessionId"].as_str().map(str::to_owned);
        let mut inbox = inbox.lock().unwrap();
        match (number, session) {
            (Some(number), _) => drop(inbox.answers.insert(number, message)),
            (None, Some(session)) => inbox.events.entry(session).or_default().push(message),
            (None, None) => {}
        }
        news.notify_all();
    }
    inbox.lock().unwrap().has_ended = true;
    news.notify_all();
}

/// A page in a browser context of its own, which ends with it.
pub(crate) struct Page {
    context: String,
    session: String,
}

impl Page {
    /// Opens a file and waits until it is loaded.
    pub(crate) fn open(file: &Path) -> Self {
        Self::open_with(file, true)
    }

    /// Opens a file in a browser that runs no script of pages.
    pub(crate) fn open_without_script(file: &Path) -> Self {
        Self::open_with(file, false)
    }

    fn open_with(file: &Path, has_script: bool) -> Self {
        let text = |method: &str, parameters: Value, key: &str| {
            BROWSER.call(None, method, parameters).unwrap()[key]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let context = text("Target.createBrowserContext", json!({}), "browserContextId");
        let target = text(
            "Target.createTarget",
            json!({"url": "about:blank", "browserContextId": context}),
            "targetId",
        );
        let session = text(
            "Target.attachToTarget",
            json!({"targetId": target, "flatten": true}),
            "sessionId",
        );
        let page = Self { context, session };
        for method in ["Page.enable", "Runtime.enable", "Log.enable"] {
            page.call(method, json!({}));
        }
        page.call("Page.setLifecycleEventsEnabled", json!({"enabled": true}));
        page.call("Performance.enable", json!({"timeDomain": "threadTicks"}));
        // Each page takes keys as if it were the only one.
        page.call(
            "Emulation.setFocusEmulationEnabled",
            json!({"enabled": true}),
        );
        page.call(
            "Emulation.setScriptExecutionDisabled",
            json!({"value": !has_script}),
        );
        let navigation = page.call(
            "Page.navigate",
            json!({"url": format!("file://{}", file.canonicalize().unwrap().display())}),
        );
        assert!(
            navigation["errorText"].is_null(),
            "{}: {navigation}",
            file.display()
        );
        let is_loaded = |event: &Value| {
            let parameters = &event["params"];
            event["method"] == "Page.lifecycleEvent"
                && parameters["name"] == "load"
                && parameters["loaderId"] == navigation["loaderId"]
        };
        let loaded = |inbox: &mut Inbox| {
            inbox
                .events
                .get(&page.session)?
                .iter()
                .any(is_loaded)
                .then_some(())
        };
        BROWSER.wait_for("loading the page", loaded).unwrap();
        page
    }

    fn call(&self, method: &str, parameters: Value) -> Value {
        BROWSER
            .call(Some(&self.session), method, parameters)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Shows the page as a screen of this size does, by day (`light`) or by night (`dark`).
    pub(crate) fn on(&self, width: u32, height: u32, scheme: &str) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        );
    }

    /// Processor time that the page has taken so far, in seconds: unlike time on the clock, it does
    /// not count other programs of a busy machine.
    pub(crate) fn processor_seconds(&self) -> f64 {
        let found = self.call("Performance.getMetrics", json!({}));
        let mut metrics = found["metrics"].as_array().unwrap().iter();
        let task = metrics.find(|metric| metric["name"] == "TaskDuration");
        task.unwrap()["value"].as_f64().unwrap()
    }

    /// The value of an expression.
    pub(crate) fn ask(&self, expression: &str) -> Value {
        let value = self.evaluate(&format!(
            "(async () => JSON.stringify(await ({expression})))()"
        ));
        value
            .as_str()
            .map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }

    fn evaluate(&self, program: &str) -> Value {
        let mut answer = self.call(
            "Runtime.evaluate",
            json!({"expression": program, "awaitPromise": true}),
        );
        assert!(
            answer["exceptionDetails"].is_null(),
            "{}: {}",
            program.chars().take(500).collect::<String>(),
            answer["exceptionDetails"]
        );
        answer["result"]["value"].take()
    }

    /// Clicks with the mouse in the middle of an element, which must be in nobody's shadow.
    pub(crate) fn click(&self, selector: &str) {
        let place = self.ask(&format!(
            "(() => {{ const element = document.querySelector({selector:?}); \
             element.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}}); \
             const box = element.getBoundingClientRect(); const [x, y] = [box.x + box.width / 2, \
             box.y + box.height / 2]; return {{x, y, isOnTop: \
             element.contains(document.elementFromPoint(x, y))}}; }})()"
        ));
        assert!(
            place["isOnTop"] == true,
            "{selector} cannot be clicked at {place}"
        );
        for (kind, button) in [
            ("mouseMoved", "none"),
            ("mousePressed", "left"),
            ("mouseReleased", "left"),
        ] {
            let event = json!({"type": kind, "x": place["x"], "y": place["y"], "button": button, "clickCount": u32::from(button == "left")});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Moves the mouse to a place of the window.
    pub(crate) fn point_at(&self, x: f64, y: f64) {
        let event = json!({"type": "mouseMoved", "x": x, "y": y, "button": "none"});
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Presses a key by its name: `Enter`, `Escape`, `ArrowRight`.
    pub(crate) fn press(&self, key: &str) {
        const CODES: [(&str, u32); 8] = [
            ("Enter", 13),
            ("Escape", 27),
            ("End", 35),
            ("Home", 36),
            ("ArrowLeft", 37),
            ("ArrowUp", 38),
            ("ArrowRight", 39),
            ("ArrowDown", 40),
        ];
        let code = CODES.iter().find(|(name, _)| *name == key).unwrap().1;
        let event = |kind: &str| json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
        let mut down = event("keyDown");
        if key == "Enter" {
            down["text"] = "\r".into();
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", event("keyUp"));
    }

    /// Types into the element that has the focus, key by key.
    pub(crate) fn type_text(&self, text: &str) {
        for letter in text.chars().map(String::from) {
            self.call(
                "Input.dispatchKeyEvent",
                json!({"type": "keyDown", "key": letter, "text": letter}),
            );
            self.call(
                "Input.dispatchKeyEvent",
                json!({"type": "keyUp", "key": letter}),
            );
        }
    }

    /// Errors, warnings and console output that the page caused.
    pub(crate) fn heard(&self) -> Vec<String> {
        // Whatever the page has caused so far comes before this answer.
        self.ask("1");
        let is_heard = |event: &Value| {
            let method = event["method"].as_str().unwrap_or_default();
            [
                "Log.entryAdded",
                "Runtime.exceptionThrown",
                "Runtime.consoleAPICalled",
            ]
            .contains(&method)
        };
        BROWSER
            .events(&self.session)
            .iter()
            .filter(|event| is_heard(event))
            .map(|event| event["params"].to_string())
            .collect()
    }

    /// What axe finds wrong: the rule, what it asks, and where.
    pub(crate) fn barriers(&self) -> Vec<String> {
        let axe = Path::new(env!("CARGO_MANIFEST_DIR")).join(".browser/axe.min.js");
        assert!(
            axe.is_file(),
            "{} is not there; `make browser` fetches it",
            axe.display()
        );
        self.evaluate(&fs::read_to_string(axe).unwrap());
        let found = self.ask(
            "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => \
             `${v.id}: ${v.help}: ` + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + ' ' + \
             n.failureSummary).join(' | ')))",
        );
        serde_json::from_value(found).unwrap()
    }

    /// For people: where `KILN_SCREENSHOTS` names a folder, the whole page as it looks now.
    pub(crate) fn show(&self, name: &str) {
        if std::env::var_os("KILN_SCREENSHOTS").is_none() {
            return;
        }
        let height = self
            .ask("document.documentElement.scrollHeight")
            .as_u64()
            .unwrap_or(1000)
            .min(9000);
        let width = self.ask("innerWidth").as_u64().unwrap_or(1000);
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        self.show_window(name);
    }

    /// The same of what is in the window.
    pub(crate) fn show_window(&self, name: &str) {
        let Some(folder) = std::env::var_os("KILN_SCREENSHOTS").map(PathBuf::from) else {
            return;
        };
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let bytes = BASE64_STANDARD
            .decode(picture["data"].as_str().unwrap())
            .unwrap();
        fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // A failure here would hide the test's own.
        let _ = BROWSER.call(
            None,
            "Target.disposeBrowserContext",
            json!({"browserContextId": self.context}),
        );
        BROWSER.inbox.0.lock().unwrap().events.remove(&self.session);
    }
}
