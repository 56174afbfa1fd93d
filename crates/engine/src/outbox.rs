//! Events on their way out, gathered a step at a time for each channel.

use std::collections::HashMap;

use pagedllm_scheduler::{Event, RequestId};

use crate::stream::EventSender;

struct Channel {
    sender: EventSender,
    events: Vec<Event>,
    num_requests: usize,
}

/// Which channel each request's events go to. Requests that share a channel share its batches.
#[derive(Default)]
pub(crate) struct Outbox {
    channels: Vec<Option<Channel>>,
    of_request: HashMap<RequestId, usize>,
}

impl Outbox {
    pub(crate) fn open(&mut self, request: RequestId, sender: EventSender) {
        let same = |channel: &Option<Channel>| {
            channel.as_ref().is_some_and(|channel| channel.sender.0.same_channel(&sender.0))
        };
        let index = self.channels.iter().position(same).unwrap_or_else(|| {
            let free = self.channels.iter().position(Option::is_none);
            let index = free.unwrap_or(self.channels.len());
            if free.is_none() {
                self.channels.push(None);
            }
            self.channels[index] = Some(Channel { sender, events: Vec::new(), num_requests: 0 });
            index
        });
        self.channels[index].as_mut().expect("in use").num_requests += 1;
        self.of_request.insert(request, index);
    }

    pub(crate) fn put(&mut self, event: Event) {
        if let Some(&index) = self.of_request.get(&event.request())
            && let Some(channel) = &mut self.channels[index]
        {
            channel.events.push(event);
        }
    }

    /// Sends what was gathered. Gives the requests whose reader is gone.
    pub(crate) fn flush(&mut self) -> Vec<RequestId> {
        let mut orphans = Vec::new();
        for (index, channel) in self.channels.iter_mut().enumerate() {
            let Some(channel) = channel.as_mut().filter(|channel| !channel.events.is_empty())
            else {
                continue;
            };
            let capacity = channel.events.len();
            let events = std::mem::replace(&mut channel.events, Vec::with_capacity(capacity));
            if channel.sender.0.send(events).is_err() {
                let of_channel = self.of_request.iter().filter(|&(_, &at)| at == index);
                orphans.extend(of_channel.map(|(&request, _)| request));
            }
        }
        orphans
    }

    /// The request has ended, and its last events are sent or can't be.
    pub(crate) fn close(&mut self, request: RequestId) {
        let Some(index) = self.of_request.remove(&request) else { return };
        let channel = self.channels[index].as_mut().expect("in use");
        channel.num_requests -= 1;
        if channel.num_requests == 0 {
            self.channels[index] = None;
        }
    }
}
