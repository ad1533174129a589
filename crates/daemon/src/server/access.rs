//! Who may read: the API server is asked who has a token (`TokenReview`), and what they may do
//! (`SubjectAccessReview`). What it said is kept for a while, so that a scrape costs it nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use sha2::{Digest, Sha256};

/// How long a yes counts: so long may somebody read whose right was taken away.
const YES: Duration = Duration::from_mins(1);
/// How long a no counts: so long does somebody wait who was given the right.
const NO: Duration = Duration::from_secs(10);
/// How many answers are kept.
const KEPT: usize = 256;
/// How many questions a second are asked of the API server, whoever asks us.
const QUESTIONS: u32 = 20;

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// They may read.
    Allowed,
    /// Nobody has this token.
    Unknown,
    /// This user has it, and may not read.
    Forbidden(String),
    /// Too many were asked at once.
    TooMany,
    /// The API server did not say.
    NotAnswered(String),
}

pub(super) struct Access {
    client: kube::Client,
    memory: Mutex<Memory>,
}

impl Access {
    pub(super) fn new(client: kube::Client) -> Self {
        Self {
            client,
            memory: Mutex::default(),
        }
    }

    /// Whether who has `token` may get `path`.
    pub(super) async fn judge(&self, token: &str, path: &str) -> Answer {
        let question = Question::new(token, path);
        match self.memory().recall(&question, Instant::now()) {
            Recall::Known(answer) => return answer,
            Recall::TooMany => return Answer::TooMany,
            Recall::Ask => {}
        }
        let answer = match self.ask(token, path).await {
            Ok(answer) => answer,
            Err(error) => return Answer::NotAnswered(error.to_string()),
        };
        self.memory().keep(question, &answer, Instant::now());
        answer
    }

    async fn ask(&self, token: &str, path: &str) -> kube::Result<Answer> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let tokens: Api<TokenReview> = Api::all(self.client.clone());
        let status = tokens
            .create(&PostParams::default(), &review)
            .await?
            .status
            .unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Answer::Unknown);
        };
        let name = user.username.clone().unwrap_or_default();
        let rights: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answered = rights
            .create(&PostParams::default(), &may_get(user, path))
            .await?
            .status;
        Ok(match answered {
            Some(status) if status.allowed => Answer::Allowed,
            _ => Answer::Forbidden(name),
        })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn may_get(user: UserInfo, path: &str) -> SubjectAccessReview {
    let extra = user.extra.unwrap_or_default().into_iter();
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: Some(extra.collect::<BTreeMap<_, _>>()),
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some("get".to_owned()),
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// A token, which is not kept itself, and a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question([u8; 32]);

impl Question {
    fn new(token: &str, path: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(path);
        // In no token, and in no path.
        hash.update([0]);
        hash.update(token);
        Self(hash.finalize().into())
    }
}

#[derive(Debug, Default)]
struct Memory {
    kept: HashMap<Question, (Answer, Instant)>,
    /// The second in which questions are counted, and how many there were.
    asked: Option<(Instant, u32)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Recall {
    Known(Answer),
    Ask,
    TooMany,
}

impl Memory {
    fn recall(&mut self, question: &Question, now: Instant) -> Recall {
        if let Some((answer, until)) = self.kept.get(question)
            && now < *until
        {
            return Recall::Known(answer.clone());
        }
        let count = match self.asked {
            Some((since, count)) if now.duration_since(since) < Duration::from_secs(1) => {
                self.asked = Some((since, count.saturating_add(1)));
                count
            }
            _ => {
                self.asked = Some((now, 1));
                0
            }
        };
        if count < QUESTIONS {
            Recall::Ask
        } else {
            Recall::TooMany
        }
    }

    fn keep(&mut self, question: Question, answer: &Answer, now: Instant) {
        let time = if *answer == Answer::Allowed { YES } else { NO };
        self.kept.retain(|_, (_, until)| now < *until);
        // Strangers may be many; who may read has a place before them.
        if self.kept.len() >= KEPT {
            self.kept
                .retain(|_, (answer, _)| *answer == Answer::Allowed);
        }
        if self.kept.len() < KEPT {
            self.kept.insert(question, (answer.clone(), now + time));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_counts_for_a_while_a_yes_longer_than_a_no() {
        let mut memory = Memory::default();
        let now = Instant::now();
        let (yes, no) = (
            Question::new("a", "/metrics"),
            Question::new("b", "/metrics"),
        );
        memory.keep(yes.clone(), &Answer::Allowed, now);
        memory.keep(no.clone(), &Answer::Unknown, now);
        let soon = now + Duration::from_secs(9);
        assert_eq!(memory.recall(&yes, soon), Recall::Known(Answer::Allowed));
        assert_eq!(memory.recall(&no, soon), Recall::Known(Answer::Unknown));
        assert_eq!(memory.recall(&no, now + NO), Recall::Ask);
        assert_eq!(memory.recall(&yes, now + YES), Recall::Ask);
        let elsewhere = Question::new("a", "/other");
        assert_eq!(memory.recall(&elsewhere, soon), Recall::Ask);
    }

    #[test]
    fn strangers_neither_fill_the_memory_nor_make_us_ask_more_than_so_often() {
        let mut memory = Memory::default();
        let now = Instant::now();
        let known = Question::new("prometheus", "/metrics");
        memory.keep(known.clone(), &Answer::Allowed, now);
        let mut asked = 0;
        for number in 0..1000 {
            let question = Question::new(&number.to_string(), "/metrics");
            if memory.recall(&question, now) == Recall::Ask {
                asked += 1;
            }
            memory.keep(question, &Answer::Unknown, now);
            assert!(memory.kept.len() <= KEPT);
        }
        assert_eq!(asked, QUESTIONS);
        assert_eq!(memory.recall(&known, now), Recall::Known(Answer::Allowed));
        let next = now + Duration::from_secs(1);
        let other = Question::new("other", "/metrics");
        assert_eq!(memory.recall(&other, next), Recall::Ask);
    }
}
