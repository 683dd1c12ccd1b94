// SPDX-License-Identifier: Apache-2.0
// Runs messages over shared links in SimGrid's fluid network model, for comparison with ours.
//
// Standard input, one a line, links and messages numbered from 0 in their order:
//   link BANDWIDTH LATENCY
//   message BYTES START links LINK... after MESSAGE...
// A message starts at START, or when all it comes after have ended, whichever is later. Standard
// output: the end of each message in seconds, one a line.
#include <simgrid/s4u.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

namespace {

struct Message {
  std::uint64_t bytes = 0;
  double start = 0, end = 0;
  std::vector<std::size_t> links, after;
  int followers = 0;
  sg::SemaphorePtr done = sg::Semaphore::create(0);
};

Message read_message(std::istringstream& words) {
  Message message;
  std::string word;
  words >> message.bytes >> message.start >> word;  // "links"
  std::vector<std::size_t>* list = &message.links;
  while (words >> word) {
    if (word == "after") {
      list = &message.after;
    } else {
      list->push_back(std::stoul(word));
    }
  }
  return message;
}

/// Max-min sharing of what the links have, and nothing of TCP: no factors, no window, no cross
/// traffic of acknowledgements.
void configure() {
  for (const char* option :
       {"network/model:CM02", "network/latency-factor:1", "network/bandwidth-factor:1",
        "network/weight-S:0", "network/TCP-gamma:0", "network/crosstraffic:0",
        "surf/precision:1e-12", "maxmin/precision:1e-9"}) {
    sg::Engine::set_config(option);
  }
}

/// Two hosts for each message, so that its route is what the input says.
void add_message(sg::NetZone* zone, const std::vector<sg::Link*>& links,
                 std::vector<Message>& messages, std::size_t index) {
  const std::string name = std::to_string(index);
  sg::Host* from = zone->create_host("from" + name, 1)->seal();
  sg::Host* to = zone->create_host("to" + name, 1)->seal();
  std::vector<sg::LinkInRoute> route;
  for (const std::size_t link : messages[index].links) route.emplace_back(links.at(link));
  zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, route, false);
  sg::Actor::create("send" + name, from, [&messages, index, name] {
    Message& message = messages[index];
    for (const std::size_t before : message.after) messages[before].done->acquire();
    sg::this_actor::sleep_until(message.start);
    sg::Mailbox::by_name(name)->put(&message, message.bytes);
    message.end = sg::Engine::get_clock();
    for (int i = 0; i < message.followers; ++i) message.done->release();
  });
  sg::Actor::create("receive" + name, to, [name] { sg::Mailbox::by_name(name)->get<Message>(); });
}

}  // namespace

int main(int argc, char** argv) {
  sg::Engine engine(&argc, argv);
  configure();
  sg::NetZone* zone = sg::create_full_zone("network");
  std::vector<sg::Link*> links;
  std::vector<Message> messages;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "message") {
      messages.push_back(read_message(words));
      continue;
    }
    double bandwidth = 0, latency = 0;
    words >> bandwidth >> latency;
    const std::string name = "link" + std::to_string(links.size());
    links.push_back(zone->create_link(name, bandwidth)->set_latency(latency)->seal());
  }
  for (const Message& message : messages) {
    for (const std::size_t before : message.after) ++messages.at(before).followers;
  }
  for (std::size_t i = 0; i < messages.size(); ++i) add_message(zone, links, messages, i);
  zone->seal();
  engine.run();
  for (const Message& message : messages) std::printf("%.15g\n", message.end);
  return 0;
}
