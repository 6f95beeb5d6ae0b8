//! The loop: keys, the broker's events, and frames.

use std::{
    future::{Future, pending},
    io,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use crossterm::event::{Event, EventStream, KeyEventKind};
use futures_util::StreamExt;
use jiff::Timestamp;
use raddle_broker::Broker;
use raddle_client::wait::MAX_WAIT;
use raddle_model::TaskQuery;
use raddle_view::{Error, failures::FailureReader};
use ratatui::{buffer::Buffer, layout::Rect};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep_until},
};

use crate::{
    action::perform,
    app::{App, Effect},
    draw::{draw, page},
    overlay::Overlay,
    reader::{Data, OverviewData, ReadAnswer, read},
    terminal::Screenful,
};

/// The shortest time between two frames.
const FRAME: Duration = Duration::from_millis(100);
/// The shortest time between two reads of the broker.
const MIN_PAUSE: Duration = Duration::from_millis(250);
/// A read is followed by a pause of this many times its length, so that watching costs a broker
/// little, however slow its answers are.
const PAUSE_FACTOR: u32 = 20;
/// How often ages are counted anew. It reads nothing.
const TICK: Duration = Duration::from_secs(1);
/// How long to wait before a broker that failed is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// Options of the TUI.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The name of the broker, without a password.
    pub broker: String,
    /// The first filter. With one, the tasks are shown first.
    pub query: TaskQuery,
    /// Whether to use colours.
    pub colours: bool,
}

type Pending<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// Shows the state of a broker on the terminal, until the user quits or a signal ends the program.
pub async fn run(broker: Arc<dyn Broker>, options: Options) -> io::Result<()> {
    // The handlers come first, so that no signal leaves the terminal as it is.
    let mut signals = [
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
    ]
    .into_iter()
    .map(signal)
    .collect::<io::Result<Vec<_>>>()?;
    let mut app = App::new(options.broker, options.query, Timestamp::now());
    app.colours = options.colours;
    let mut screenful = Screenful::open()?;
    let outcome = Session::new(broker)
        .follow(&mut app, &mut screenful, &mut signals)
        .await;
    drop(screenful);
    outcome
}

/// The state of the loop.
struct Session {
    broker: Arc<dyn Broker>,
    failures: Option<FailureReader>,
    reading: Pending<(Result<ReadAnswer, Error>, FailureReader)>,
    acting: Pending<Result<String, String>>,
    watching: Pending<Result<u64, raddle_broker::Error>>,
    /// Whether something has changed since the last read began.
    is_stale: bool,
    /// Whether the user waits for a read: it then begins without a pause.
    is_urgent: bool,
    /// When the next read may begin.
    next_read: Instant,
    read_began: Instant,
    /// Whether something has changed since the last frame.
    is_drawn: bool,
    next_frame: Instant,
    next_tick: Instant,
}

impl Session {
    fn new(broker: Arc<dyn Broker>) -> Self {
        let now = Instant::now();
        Self {
            watching: Some(watch(broker.clone(), None)),
            broker,
            failures: Some(FailureReader::default()),
            reading: None,
            acting: None,
            is_stale: true,
            is_urgent: true,
            next_read: now,
            read_began: now,
            is_drawn: false,
            next_frame: now,
            next_tick: now + TICK,
        }
    }

    async fn follow(
        mut self,
        app: &mut App,
        screenful: &mut Screenful,
        signals: &mut [Signal],
    ) -> io::Result<()> {
        let mut events = EventStream::new();
        loop {
            self.start_reading(app);
            let wake = self.next_wake(app);
            tokio::select! {
                biased;
                () = any(signals) => return Ok(()),
                event = events.next() => match event {
                    Some(Ok(event)) => if self.take_event(app, event)? {
                        return Ok(());
                    },
                    Some(Err(error)) => return Err(error),
                    // The terminal is gone.
                    None => return Ok(()),
                },
                (answer, failures) = finished(&mut self.reading) => self.take_answer(app, answer, failures),
                outcome = finished(&mut self.acting) => {
                    app.finish(outcome);
                    (self.is_drawn, self.is_urgent) = (false, true);
                }
                changed = finished(&mut self.watching) => self.take_change(app, changed),
                () = sleep_until(wake) => {}
            }
            self.show(app, screenful)?;
        }
    }

    /// Draws at most one frame in [`FRAME`], and only after a change.
    fn show(&mut self, app: &mut App, screenful: &mut Screenful) -> io::Result<()> {
        let now = Instant::now();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            if app.walk.is_none() {
                app.now = Timestamp::now();
                self.is_drawn = false;
            }
        }
        if self.is_drawn || now < self.next_frame {
            return Ok(());
        }
        screenful.terminal.draw(|frame| {
            app.page = page(frame.area().height);
            if let Some(cursor) = draw(app, frame.area(), frame.buffer_mut()) {
                frame.set_cursor_position(cursor);
            }
        })?;
        self.is_drawn = true;
        self.next_frame = now + FRAME;
        Ok(())
    }

    /// When there is something to do without any news.
    fn next_wake(&self, app: &App) -> Instant {
        let mut wake = self.next_tick;
        if !self.is_drawn {
            wake = wake.min(self.next_frame);
        }
        if self.wants_read(app) && self.reading.is_none() {
            wake = wake.min(self.next_read);
        }
        wake
    }

    fn wants_read(&self, app: &App) -> bool {
        self.is_urgent || self.is_stale || follows_output(app)
    }

    fn start_reading(&mut self, app: &App) {
        let is_due = self.is_urgent || Instant::now() >= self.next_read;
        if !is_due || !self.wants_read(app) {
            return;
        }
        let Some(mut failures) = self.failures.take() else {
            return;
        };
        (self.is_stale, self.is_urgent) = (false, false);
        self.read_began = Instant::now();
        let (broker, url, request) = (self.broker.clone(), app.broker.clone(), app.request());
        self.reading = Some(Box::pin(async move {
            let answer = read(&*broker, url, &mut failures, request).await;
            (answer, failures)
        }));
    }

    fn take_answer(
        &mut self,
        app: &mut App,
        answer: Result<ReadAnswer, Error>,
        failures: FailureReader,
    ) {
        self.failures = Some(failures);
        self.is_drawn = false;
        let now = Instant::now();
        let pause = (now - self.read_began) * PAUSE_FACTOR;
        self.next_read = now + pause.max(MIN_PAUSE);
        match answer {
            Ok(answer) => app.show(answer),
            // The task is gone; the broker is not.
            Err(Error::Broker(raddle_broker::Error::NotFound(tid))) => {
                app.overlays.pop();
                self.is_stale = true;
                app.finish(Err(format!("task {tid} is gone")));
            }
            Err(error) => {
                app.failure = Some(error.to_string());
                self.is_stale = true;
                self.next_read = now + RETRY;
            }
        }
    }

    /// The log has grown, or the broker has failed.
    fn take_change(&mut self, app: &mut App, changed: Result<u64, raddle_broker::Error>) {
        match changed {
            Ok(last) => {
                self.is_stale |= app.walk.is_none();
                self.watching = Some(watch(self.broker.clone(), Some(last)));
            }
            Err(error) => {
                app.failure = Some(error.to_string());
                (self.is_stale, self.is_drawn) = (true, false);
                let broker = self.broker.clone();
                self.watching = Some(Box::pin(async move {
                    tokio::time::sleep(RETRY).await;
                    broker_last_event(&*broker).await
                }));
            }
        }
    }

    /// Takes a key or a new size. Returns whether to quit.
    fn take_event(&mut self, app: &mut App, event: Event) -> io::Result<bool> {
        self.is_drawn = false;
        let Event::Key(key) = event else {
            return Ok(false);
        };
        if key.kind == KeyEventKind::Release {
            return Ok(false);
        }
        for effect in app.press(key) {
            match effect {
                Effect::Quit => return Ok(true),
                Effect::Read => self.is_urgent = true,
                Effect::Copy(text) => {
                    Screenful::copy(&text)?;
                    app.finish(Ok(format!("copied: {text}")));
                }
                Effect::Perform(_) if self.acting.is_some() => {
                    app.finish(Err("another action is under way".into()));
                }
                Effect::Perform(action) => {
                    let broker = self.broker.clone();
                    self.acting = Some(Box::pin(async move { perform(&*broker, action).await }));
                }
            }
        }
        Ok(false)
    }
}

/// Whether an output is shown that may grow. Output has no event, so it is read again.
fn follows_output(app: &App) -> bool {
    app.overlays.last().is_some_and(Overlay::follows_output)
}

/// Waits for the next event after `seen`, and returns the last one.
fn watch(
    broker: Arc<dyn Broker>,
    seen: Option<u64>,
) -> Pin<Box<dyn Future<Output = Result<u64, raddle_broker::Error>> + Send>> {
    Box::pin(async move {
        if let Some(seen) = seen {
            broker.events(Some(seen), None, 1, MAX_WAIT).await?;
        }
        broker_last_event(&*broker).await
    })
}

async fn broker_last_event(broker: &dyn Broker) -> Result<u64, raddle_broker::Error> {
    broker.last_event().await
}

/// The result of a future that is under way. Without one, it waits without end.
async fn finished<T>(future: &mut Pending<T>) -> T {
    match future {
        Some(running) => {
            let result = running.await;
            *future = None;
            result
        }
        None => pending().await,
    }
}

async fn any(signals: &mut [Signal]) {
    let waits = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    futures_util::future::select_all(waits).await;
}

/// Reads the overview once: its values, and its frame as text of this size.
pub async fn print_frame(
    broker: &dyn Broker,
    options: Options,
    (width, height): (u16, u16),
) -> Result<(OverviewData, String), Error> {
    let mut failures = FailureReader::default();
    let url = options.broker.clone();
    let mut app = App::new(options.broker, TaskQuery::default(), Timestamp::now());
    app.colours = false;
    let data = OverviewData::read(broker, url, &mut failures).await?;
    app.data = Data::Overview(Box::new(data));
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(&app, area, &mut buffer);
    let text = text_of(&buffer);
    match app.data {
        Data::Overview(data) => Ok((*data, text)),
        _ => unreachable!("it was just stored"),
    }
}

/// The cells as lines, without what only a terminal shows.
fn text_of(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width.max(1));
    // The last line has the keys.
    let rows = buffer.content.chunks(width);
    let lines: Vec<String> = rows
        .take(usize::from(buffer.area.height.saturating_sub(1)))
        .map(|row| {
            let line: String = row.iter().map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned()
        })
        .collect();
    let text = lines.join("\n");
    text.trim_end().to_owned() + "\n"
}
