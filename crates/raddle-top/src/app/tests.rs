use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use raddle_model::{AttemptReport, ExitStatus, TaskSpec, TaskState, TaskView};
use raddle_view::{failures::FailureList, tasks::TaskList};

use super::*;
use crate::action::TaskAction;

pub(crate) fn now() -> Timestamp {
    "2026-11-18T12:00:00Z".parse().unwrap()
}

pub(crate) fn tid(number: u64) -> Tid {
    Tid::from_u64(1_795_000_000_000_000_000 + number).unwrap()
}

/// A task that was submitted so many seconds ago.
pub(crate) fn task(number: u64, name: &str, state: TaskState, secs: i64) -> TaskView {
    let created = now() - SignedDuration::from_secs(secs);
    let spec = TaskSpec {
        name: Some(name.into()),
        queue: if number.is_multiple_of(2) {
            "mail"
        } else {
            "default"
        }
        .into(),
        ..TaskSpec::command(["render", name])
    };
    let report = state.is_terminal().then(|| {
        let code = i32::from(state != TaskState::Completed);
        AttemptReport {
            started_at: Some(created + SignedDuration::from_secs(1)),
            ..AttemptReport::bare(
                ExitStatus::Code { code },
                created + SignedDuration::from_secs(3),
            )
        }
    });
    TaskView {
        state,
        attempt: u32::from(state != TaskState::Created),
        dead: state == TaskState::Failed,
        worker: (state != TaskState::Created).then(|| tid(9000)),
        claimed_at: (state != TaskState::Created).then(|| created + SignedDuration::from_secs(1)),
        finished_at: report.as_ref().map(|report| report.ended_at),
        report,
        ..TaskView::new(tid(number), spec, created)
    }
}

pub(crate) fn tasks() -> Vec<TaskView> {
    vec![
        task(5, "send welcome mail", TaskState::Created, 4),
        task(4, "frame-0012.png", TaskState::Running, 20),
        task(3, "import", TaskState::Failed, 300),
        task(2, "nightly report", TaskState::Completed, 7200),
        task(1, "cleanup", TaskState::Cancelled, 90_000),
    ]
}

pub(crate) fn app(screen: Screen, data: Data) -> App {
    let mut app = App::new(
        "sqlite:/srv/app/.raddle/broker.db".into(),
        TaskQuery::default(),
        now(),
    );
    (app.screen, app.data, app.read_at) = (screen, data, Some(now()));
    app.history = vec![(screen, TaskQuery::default())];
    app
}

pub(crate) fn task_app() -> App {
    let items = tasks();
    let looked_at = items.len() as u64;
    let list = TaskList {
        items,
        next: None,
        looked_at,
        complete: true,
    };
    app(Screen::Tasks, Data::Tasks(list))
}

pub(crate) fn press(app: &mut App, keys: &str) -> Vec<Effect> {
    let mut effects = Vec::new();
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\t' => KeyCode::Tab,
            key => KeyCode::Char(key),
        };
        effects = app.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
    effects
}

#[test]
fn a_key_acts_on_the_row_at_once() {
    let mut app = task_app();
    let effects = press(&mut app, "jjR");
    let retry = Action::Tasks(TaskAction::Retry, vec![tid(3)]);
    assert_eq!(effects, [Effect::Perform(retry)]);
    app.finish(Ok("done".into()));
    assert_eq!(
        app.message.as_ref().map(|message| message.is_error),
        Some(false)
    );
}

#[test]
fn several_tasks_are_confirmed() {
    let mut app = task_app();
    assert_eq!(press(&mut app, "xjxT"), []);
    assert_eq!(press(&mut app, "n"), []);
    assert_eq!(app.marks.len(), 2);
    press(&mut app, "T");
    let stop = Action::Tasks(TaskAction::Stop, vec![tid(3), tid(5)]);
    assert_eq!(press(&mut app, "y"), [Effect::Perform(stop)]);
    assert!(app.marks.is_empty() && app.overlays.is_empty());
}

#[test]
fn the_number_of_many_tasks_is_typed() {
    let mut app = task_app();
    app.marks = (0..101).map(tid).collect();
    press(&mut app, "D");
    assert_eq!(press(&mut app, "y\n"), []);
    assert_eq!(app.marks.len(), 101, "nothing was done");
    press(&mut app, "D");
    let effects = press(&mut app, "101\n");
    let [Effect::Perform(Action::Tasks(TaskAction::Delete, tids))] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    assert_eq!(tids.len(), 101);
}

#[test]
fn ranges_and_all_rows_are_marked() {
    let mut app = task_app();
    press(&mut app, "xjj ");
    assert_eq!(app.marks.len(), 4);
    press(&mut app, "A");
    assert_eq!(app.marks.len(), 5);
    app.press(KeyEvent::new(KeyCode::Char('\\'), KeyModifiers::CONTROL));
    assert!(app.marks.is_empty());
}

#[test]
fn a_filter_is_a_query_with_a_position_for_mistakes() {
    let mut app = task_app();
    press(&mut app, "/state:faild\n");
    let prompt = app.prompt.as_ref().unwrap();
    assert!(prompt.remark.as_ref().unwrap().contains("character 7"));
    press(&mut app, "\u{1b}/state:failed\n");
    assert_eq!(app.query.to_string(), "state:failed");
    assert_eq!(app.request().query, app.query);
    assert_eq!(app.as_command(), "raddle task list 'state:failed'");
    press(&mut app, "\u{1b}");
    assert!(app.query.is_empty());
    press(&mut app, "[");
    assert_eq!(app.query.to_string(), "state:failed");
}

#[test]
fn a_row_leads_to_its_tasks() {
    let queue = raddle_view::queues::QueueState {
        queue: "mail".into(),
        ..Default::default()
    };
    let list = raddle_view::queues::QueueList {
        items: vec![queue],
        ..Default::default()
    };
    let mut app = app(Screen::Queues, Data::Queues(list));
    assert_eq!(press(&mut app, "\n"), [Effect::Read]);
    assert_eq!(
        (app.screen, app.query.to_string()),
        (Screen::Tasks, "queue:mail".into())
    );
    press(&mut app, "[");
    assert_eq!(app.screen, Screen::Queues);
    press(&mut app, ":queue default\n");
    assert_eq!(app.query.to_string(), "queue:default");
}

#[test]
fn the_selection_stays_on_its_task() {
    let mut app = task_app();
    press(&mut app, "j");
    let mut items = vec![task(7, "new", TaskState::Created, 0)];
    items.extend(tasks());
    let list = TaskList {
        items,
        ..TaskList::default()
    };
    let answer = ReadAnswer {
        request: app.request(),
        data: Data::Tasks(list),
        over: None,
        read_at: now(),
    };
    app.show(answer);
    assert_eq!(
        (app.selected, app.selected_row()),
        (2, Some(RowId::Task(tid(4))))
    );
}

#[test]
fn an_answer_to_another_question_is_dropped() {
    let mut app = task_app();
    let request = app.request();
    press(&mut app, "3");
    let answer = ReadAnswer {
        request,
        data: Data::Tasks(TaskList::default()),
        over: None,
        read_at: now(),
    };
    app.show(answer);
    assert!(matches!(app.data, Data::Loading));
    let request = app.request();
    let data = Data::Failures(FailureList::default());
    app.show(ReadAnswer {
        request,
        data,
        over: None,
        read_at: now(),
    });
    assert!(matches!(app.data, Data::Failures(_)));
}

#[test]
fn a_frozen_screen_walks_in_time() {
    let mut app = task_app();
    assert_eq!(press(&mut app, "<"), [], "it is not frozen");
    press(&mut app, "z<<");
    assert_eq!(
        app.request().at,
        Some(now() - SignedDuration::from_secs(20))
    );
    press(&mut app, "-<");
    assert_eq!(
        app.request().at,
        Some(now() - SignedDuration::from_secs(80))
    );
    press(&mut app, "++>");
    assert_eq!(
        app.request().at,
        Some(now() - SignedDuration::from_secs(79))
    );
    press(&mut app, "z");
    assert_eq!(app.request().at, None);
}

#[test]
fn explain_and_output_are_read_for_the_row() {
    use crate::reader::OverRequest;
    let mut app = task_app();
    press(&mut app, "je");
    assert_eq!(app.request().over, Some(OverRequest::Task(tid(4))));
    press(&mut app, "o");
    assert_eq!(app.request().over, Some(OverRequest::Output(tid(4), None)));
    assert!(app.overlays.last().unwrap().follows_output());
    press(&mut app, "f");
    assert!(!app.overlays.last().unwrap().follows_output());
    press(&mut app, "\u{1b}\u{1b}");
    assert_eq!(app.request().over, None);
    assert_eq!(press(&mut app, "q"), [Effect::Quit]);
}

#[test]
fn keys_never_panic() {
    let keys: Vec<char> = "jkhlgGxA Tn101\n/a\n:q\u{1b}z<>+-eo?fw[]123456789RTKDprYy\t\\"
        .chars()
        .collect();
    let mut state = 88_172_645_463_325_252_u64;
    let mut app = task_app();
    for _ in 0..20_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let key = keys[(state % keys.len() as u64) as usize];
        press(&mut app, &key.to_string());
        app.history.truncate(50);
        app.history_at = app.history_at.min(49);
        app.overlays.truncate(10);
    }
}
