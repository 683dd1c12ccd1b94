// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/last_resort.h"

#include "runtime/bootstrap/socket.h"
#include "tests/support/job_token.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

namespace agpcs {
namespace {

std::unique_ptr<Bootstrap> job_of_one() {
  BootstrapOptions options;
  options.listen_fd = listen_at("127.0.0.1")->release();
  options.token = kJobToken;
  auto joined = Bootstrap::join(options);
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  return std::move(joined).value();
}

TEST(LastResort, EndsARankThatComputesOnAfterAFailure) {
  const auto bootstrap = job_of_one();
  std::promise<std::string> ended;
  const LastResort last_resort(*bootstrap,
                               [&](const Status& failure) { ended.set_value(failure.message()); });
  bootstrap->report(internal_error("rank 0: broken"));
  EXPECT_EQ(ended.get_future().get(), "rank 0: broken");  // this thread computes on until then
}

TEST(LastResort, LeavesARankAloneThatEndsByItself) {
  const auto bootstrap = job_of_one();
  bool ended = false;
  {
    const LastResort last_resort(*bootstrap, [&](const Status&) { ended = true; });
    bootstrap->report(internal_error("rank 0: broken"));
    EXPECT_EQ(bootstrap->wait_for_failure(std::chrono::seconds(60)).message(), "rank 0: broken");
  }
  EXPECT_FALSE(ended);
}

}  // namespace
}  // namespace agpcs
