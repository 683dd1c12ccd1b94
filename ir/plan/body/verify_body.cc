// SPDX-License-Identifier: Apache-2.0
// Checks bodies of teams as far as a plan tells: who has which part, that each exchange comes once
// and in its order, and that parameters are those of the stage's buckets. Whether operators can be
// divided so is for those who have the model (`verify_team_body`).
//
// All members of a team run one program and one body, so their exchanges have one order. These are
// within passes, which are one node for all ranks of a stage where `check_progress` finds cycles.
#include "ir/plan/body/body.h"
#include "ir/plan/body/body_text.h"
#include "ir/plan/lookup.h"
#include "ir/plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

class BodyChecker {
 public:
  /// `replica`: the first that has the body.
  BodyChecker(const Plan& plan, int stage, std::size_t replica, const PlanBody& body,
              PlanFaults& faults)
      : plan_(plan),
        index_(stage),
        stage_(plan.stages[static_cast<std::size_t>(stage)]),
        replica_(replica),
        body_(body),
        faults_(faults) {}

  /// Each part may index into what the parts before it have found right.
  void run() {
    check_stage();
    check_members();
    if (faults_.empty()) check_operators();
    if (faults_.empty()) check_tensors();
    if (faults_.empty()) check_parameters();
    if (faults_.empty()) check_forward();
    if (faults_.empty()) check_backward();
    if (faults_.empty()) check_step_end();
  }

 private:
  void fail(const std::string& message, std::string hint = {}) {
    faults_.push_back({fmt::format("body {}: {}", body_.name, message), std::move(hint)});
  }
  bool is_division(int index) const {
    return index >= 0 && index < static_cast<int>(body_.divisions.size());
  }
  const BodyDivision& division(int index) const {
    return body_.divisions[static_cast<std::size_t>(index)];
  }
  const BodyTensor& tensor(int index) const {
    return body_.tensors[static_cast<std::size_t>(index)];
  }

  /// Refuses what no body says yet.
  void check_stage() {
    const auto together = [&](bool has, std::string_view what) {
      if (!has) return;
      fail(fmt::format("stage {} has teams, and {}", stage_.name, what),
           "the two do not go together yet");
    };
    together(stage_.idle(), "no operators");
    together(stage_.recompute, "recompute=yes");
    together(stage_.activations_in_host, "activations-in=host");
    together(stage_.state_in_host, "state-in=host");
    together(plan_.parts_backward(), fmt::format("the schedule is {}", name_of(plan_.schedule)));
    for (const PlanBucket& bucket : plan_.buckets) {
      if (!bucket.is_of(index_)) continue;
      together(bucket.is_sharded(), fmt::format("bucket {} divides its state", bucket.name));
      together(bucket.is_shared(), fmt::format("bucket {} is shared", bucket.name));
      together(bucket.flow >= 0, fmt::format("bucket {} names a flow", bucket.name));
    }
  }

  void check_members() {
    const std::size_t members = stage_.members(replica_).size();
    for (std::size_t i = 0; i < stage_.ranks.size(); ++i) {
      const std::size_t has = stage_.members(i).size();
      if (stage_.body_of(i) != stage_.body_of(replica_) || has == body_.members()) continue;
      fail(fmt::format("parts of {} members, teams of {} have {}", body_.members(), stage_.name,
                       has),
           stage_.has_unlike_teams()
               ? "a replica has as many members as its body has parts"
               : "all replicas of a stage have as many members as its body has parts");
      break;
    }
    for (const std::int64_t part : body_.parts) {
      if (part < 1 || part > kLargestFigure) fail(fmt::format("a member's part is {}", part));
    }
    for (std::size_t d = 0; d < body_.divisions.size(); ++d) {
      const std::vector<std::int64_t>& pieces = body_.divisions[d].pieces;
      std::int64_t common = 0, sum = 0;
      bool fits = pieces.size() == members;
      for (const std::int64_t piece : pieces) {
        fits = fits && piece >= 1 && piece <= kLargestFigure - sum;
        if (!fits) break;
        sum += piece;
        common = std::gcd(common, piece);
      }
      if (!fits || common != 1) {
        fail(fmt::format("division d{} has pieces {} for {} members", d, print_numbers(pieces, ','),
                         members),
             "a piece at least for each member, in lowest terms");
      }
      const auto same =
          std::find(body_.divisions.begin(), body_.divisions.end(), body_.divisions[d]);
      const bool used =
          std::any_of(body_.operators.begin(), body_.operators.end(),
                      [&](const BodyOperator& one) { return one.division == static_cast<int>(d); });
      if (used && same == body_.divisions.begin() + static_cast<std::ptrdiff_t>(d)) continue;
      fail(fmt::format("division d{} {}", d, used ? "is there twice" : "divides no operator"));
    }
  }

  void check_operators() {
    std::set<std::string_view> names;
    for (const BodyOperator& one : body_.operators) {
      if (!names.insert(one.name).second) fail(fmt::format("'{}' is computed twice", one.name));
      const bool whole = one.split.empty();
      if ((whole && (one.division >= 0 || !one.bands.empty())) || (!whole && one.gradient_sum)) {
        fail(fmt::format("'{}' is {}", one.name,
                         whole ? "whole, and divided" : "divided, and has gradient=sum"));
      }
      if (one.division >= 0 && !is_division(one.division)) {
        fail(fmt::format("'{}' is divided by d{}, of {} divisions", one.name, one.division,
                         body_.divisions.size()));
      } else {
        check_bands(one.name, one.division, one.bands);
      }
    }
    // The stage's runs, and the operators between their ends.
    std::size_t next = 0;
    for (const PlanStage::Run& run : stage_.operators) {
      const std::size_t count = static_cast<std::size_t>(run.count);
      if (count > body_.operators.size() - next || body_.operators[next].name != run.first ||
          body_.operators[next + count - 1].name != run.last) {
        return fail(fmt::format("its operators are not those of stage {} from '{}' to '{}'",
                                stage_.name, run.first, run.last),
                    "a body computes the operators of its stage, in the model's order");
      }
      next += count;
    }
    if (next == body_.operators.size()) return;
    fail(fmt::format("{} operators, stage {} has {}", body_.operators.size(), stage_.name, next));
  }

  void check_bands(const std::string& name, int by, const std::vector<std::int64_t>& bands) {
    if (bands.empty()) return;
    std::int64_t sum = 0;
    bool fits = bands.size() > 1 && by >= 0;
    for (const std::int64_t band : bands) {
      fits = fits && band >= 1 && band <= kLargestFigure - sum && band % division(by).of() == 0;
      if (!fits) break;
      sum += band;
    }
    if (fits) return;
    fail(fmt::format("'{}' has bands {}", name, print_numbers(bands, '+')),
         "two bands at least, and each member gets whole units of each");
  }

  void check_tensors() {
    std::set<std::string_view> names;
    for (const BodyTensor& one : body_.tensors) {
      if (!names.insert(one.name).second) fail(fmt::format("'{}' is there twice", one.name));
      std::int64_t elements = 1;
      for (const BodyExtent& extent : one.shape) {
        const std::int64_t most = kLargestFigure / elements / plan_.training.batch / 2;
        if (extent.fixed < 0 || extent.per_sample < 0 || extent.fixed > most ||
            extent.per_sample > most || extent.fixed + extent.per_sample == 0 ||
            (one.parameter && extent.per_sample > 0)) {
          return fail(fmt::format("'{}' has shape {}", one.name, print_extents(one.shape)));
        }
        elements *= extent.fixed + extent.per_sample * plan_.training.batch;
      }
      if (one.gradient && !is_floating(one.type)) {
        fail(fmt::format("'{}' of {} has a gradient", one.name, name_of(one.type)));
      }
      if (!one.parameter && one.forms.size() < 2) {
        fail(fmt::format("'{}' has one form", one.name),
             "only parameters, and tensors of several forms, are listed");
      }
      check_forms(one);
    }
  }

  void check_forms(const BodyTensor& one) {
    std::size_t begun = 0;
    for (std::size_t i = 0; i < one.forms.size(); ++i) {
      const BodyForm& form = one.forms[i];
      const auto same = std::find_if(one.forms.begin(), one.forms.end(),
                                     [&](const BodyForm& other) { return other.is_same(form); });
      if (same != one.forms.begin() + static_cast<std::ptrdiff_t>(i)) {
        return fail(fmt::format("'{}' has the form {} twice", one.name, print_lying(form)));
      }
      if (form.from >= static_cast<int>(i)) {
        return fail(
            fmt::format("form {} of '{}' is made of none before it", print_lying(form), one.name));
      }
      begun += form.from < 0 ? 1 : 0;
      if (form.lying == Lying::kCopySummed && !one.gradient) {
        return fail(fmt::format("'{}' has no gradient, but a form copy/sum", one.name));
      }
      if (form.lying == Lying::kPart && !check_part(one, form)) return;
    }
    if (one.gradient && begun > 1) fail(fmt::format("'{}' begins in two forms", one.name));
    if (!one.parameter) return;
    const Lying first = one.forms.front().lying;
    if (first != Lying::kCopy && first != Lying::kPart) {
      fail(fmt::format("parameter '{}' begins as {}", one.name, print_lying(one.forms.front())),
           "a member holds a copy or a part of a parameter");
    }
    for (int i = 1; i < static_cast<int>(one.forms.size()); ++i) {
      if (!is_collective(forward_exchange(one, i))) continue;
      fail(fmt::format("parameter '{}' is gathered", one.name), "nothing gathers a parameter");
    }
  }

  /// A part holds each element of its axis once: bands fill the axis, and members the bands.
  bool check_part(const BodyTensor& one, const BodyForm& form) {
    const bool known = is_division(form.division) && form.axis >= 0 &&
                       form.axis < static_cast<int>(one.shape.size());
    if (!known) {
      fail(fmt::format("'{}' of shape {} has no part {}", one.name, print_extents(one.shape),
                       print_lying(form)));
      return false;
    }
    const BodyExtent& extent = one.shape[static_cast<std::size_t>(form.axis)];
    const std::int64_t of = division(form.division).of();
    std::int64_t sum = form.bands.empty() ? extent.fixed : 0;
    bool fits = extent.per_sample == 0 && form.bands.size() != 1 && extent.fixed % of == 0;
    for (const std::int64_t band : form.bands) {
      fits = fits && band >= 1 && band % of == 0 && band <= extent.fixed - sum;
      if (!fits) break;
      sum += band;
    }
    if (fits && sum == extent.fixed) return true;
    fail(fmt::format("the parts {} of '{}' are not all of its axis {} of {}, each once",
                     print_lying(form), one.name, form.axis, print_extents({extent})),
         fmt::format("d{} makes {} pieces of each band", form.division, of));
    return false;
  }

  /// The parameters of the body are those whose gradients the stage's buckets have.
  void check_parameters() {
    std::set<std::string_view> in_buckets;
    for (const PlanBucket& bucket : plan_.buckets) {
      if (!bucket.is_of(index_)) continue;
      for (const BucketMember& member : bucket.members) {
        in_buckets.insert(member.parameter);
        const BodyTensor* const own = find_parameter(body_, member.parameter);
        if (own == nullptr) {
          fail(fmt::format("parameter '{}' of bucket {} is not listed", member.parameter,
                           bucket.name),
               "a body says how each parameter of its stage lies");
        } else if (whole_elements(*own, 1) != member.elements || own->type != bucket.type) {
          fail(fmt::format("parameter '{}' has {} elements of {}, bucket {} has {} of {}",
                           own->name, whole_elements(*own, 1), name_of(own->type), bucket.name,
                           member.elements, name_of(bucket.type)));
        }
      }
    }
    for (const BodyTensor& one : body_.tensors) {
      if (!one.parameter || in_buckets.contains(one.name)) continue;
      fail(fmt::format("the gradient of parameter '{}' is in no bucket of {}", one.name,
                       stage_.name));
    }
  }

  using Exchanges = std::set<std::pair<int, int>>;  // by tensor and form

  std::string name_of_step(const BodyStep& step) const {
    if (!step.is_exchange()) return "a run of operators";
    const BodyTensor& one = tensor(step.tensor);
    return fmt::format("the exchange of '{}' for {}", one.name,
                       print_lying(one.forms[static_cast<std::size_t>(step.form)]));
  }

  bool is_step(const BodyStep& step, std::string_view where) {
    const bool known = step.is_exchange()
                           ? step.tensor < static_cast<int>(body_.tensors.size()) &&
                                 step.form >= 0 &&
                                 step.form < static_cast<int>(tensor(step.tensor).forms.size())
                           : step.first >= 0 && step.first <= step.last &&
                                 step.last < static_cast<int>(body_.operators.size());
    if (!known) fail(fmt::format("{}: a step of what is not there", where));
    return known;
  }

  /// Checks that runs follow one another, with an exchange between, over all operators.
  bool check_runs(const std::vector<BodyStep>& steps, bool forward, std::string_view where) {
    const int operators = static_cast<int>(body_.operators.size());
    int next = forward ? 0 : operators - 1;
    const BodyStep* before = nullptr;
    for (const BodyStep& step : steps) {
      if (!is_step(step, where)) return false;
      const bool run = !step.is_exchange();
      if (run && before != nullptr && !before->is_exchange()) {
        fail(fmt::format("{}: two runs of operators with nothing between", where),
             "they are one run");
        return false;
      }
      before = &step;
      if (!run) continue;
      if ((forward ? step.first : step.last) != next) {
        fail(fmt::format("{}: '{}' comes where '{}' is expected", where,
                         operator_name(forward ? step.first : step.last), operator_name(next)),
             forward ? "forward passes go from the first operator to the last"
                     : "backward passes go from the last operator to the first");
        return false;
      }
      next = forward ? step.last + 1 : step.first - 1;
    }
    if (next == (forward ? operators : -1)) return true;
    fail(fmt::format("{}: '{}' is not computed", where, operator_name(next)));
    return false;
  }

  std::string_view operator_name(int index) const {
    if (index < 0 || index >= static_cast<int>(body_.operators.size())) return "nothing";
    return body_.operators[static_cast<std::size_t>(index)].name;
  }

  /// Checks that exactly the exchanges of `wanted` are in `steps`, each once.
  void check_exchanges(const std::vector<BodyStep>& steps, Exchanges wanted,
                       std::string_view where) {
    for (const BodyStep& step : steps) {
      if (!step.is_exchange() || wanted.erase({step.tensor, step.form}) == 1) continue;
      fail(fmt::format("{}: {} comes twice, or is none", where, name_of_step(step)),
           "each exchange that forms need comes once: parameters' gradients in step-end, others in "
           "backward");
    }
    for (const auto& [of, form] : wanted) {
      BodyStep missing;
      missing.tensor = of;
      missing.form = form;
      fail(fmt::format("{}: {} is missing", where, name_of_step(missing)),
           fmt::format("the forms of '{}' are {}", tensor(of).name, print_forms(tensor(of).forms)));
    }
  }

  /// Checks that an exchange comes after (`order` 1) or before (-1) those of the forms that its own
  /// is made of.
  void check_order(const std::vector<BodyStep>& steps, int order, std::string_view where) {
    std::set<std::pair<int, int>> done;
    for (const BodyStep& step : steps) {
      if (!step.is_exchange()) continue;
      done.insert({step.tensor, step.form});
      const BodyTensor& one = tensor(step.tensor);
      for (int form = one.forms[static_cast<std::size_t>(step.form)].from; form >= 0;
           form = one.forms[static_cast<std::size_t>(form)].from) {
        const TeamExchange exchange =
            order > 0 ? forward_exchange(one, form) : backward_exchange(one, form);
        const bool is_done = done.contains({step.tensor, form});
        if (exchange == TeamExchange::kNothing || is_done == (order > 0)) continue;
        fail(fmt::format("{}: {} comes before what it needs", where, name_of_step(step)),
             fmt::format("the forms of '{}' are {}", one.name, print_forms(one.forms)));
      }
    }
  }

  Exchanges wanted(bool forward, bool of_parameters) const {
    Exchanges all;
    for (int i = 0; i < static_cast<int>(body_.tensors.size()); ++i) {
      const BodyTensor& one = tensor(i);
      if (!forward && one.parameter != of_parameters) continue;
      for (int form = 0; form < static_cast<int>(one.forms.size()); ++form) {
        const TeamExchange exchange =
            forward ? forward_exchange(one, form) : backward_exchange(one, form);
        if (exchange != TeamExchange::kNothing) all.insert({i, form});
      }
    }
    return all;
  }

  void check_forward() {
    if (!check_runs(body_.forward, true, "forward")) return;
    check_exchanges(body_.forward, wanted(true, false), "forward");
    check_order(body_.forward, 1, "forward");
  }

  void check_backward() {
    if (!check_runs(body_.backward, false, "backward")) return;
    check_exchanges(body_.backward, wanted(false, false), "backward");
    check_order(body_.backward, -1, "backward");
  }

  void check_step_end() {
    for (const BodyStep& step : body_.step_end) {
      if (!is_step(step, "step-end")) return;
      if (!step.is_exchange()) return fail("step-end: operators are computed in passes");
    }
    check_exchanges(body_.step_end, wanted(false, true), "step-end");
    check_order(body_.step_end, -1, "step-end");
  }

  const Plan& plan_;
  int index_;
  const PlanStage& stage_;
  std::size_t replica_;
  const PlanBody& body_;
  PlanFaults& faults_;
};

/// Checks the numbers of the bodies of a stage, of which `next` is to be the first; returns the one
/// behind the last, or nothing after a fault.
std::optional<std::size_t> check_numbers(const Plan& plan, const PlanStage& stage, std::size_t next,
                                         PlanFaults& faults) {
  const std::size_t first = next;
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
    const int body = stage.body_of(i);
    const bool known = body >= static_cast<int>(first) && body < static_cast<int>(next);
    if (!known && (body != static_cast<int>(next) || next >= plan.bodies.size())) {
      faults.push_back(
          {fmt::format("stage {} has body=t{}, of {} bodies", stage.name, body, plan.bodies.size()),
           stage.has_unlike_teams()
               ? "each stage with teams has bodies of its own, in the order of "
                 "stages, and within it of the replicas that have them first"
               : "each stage with teams has a body of its own, in the order of stages"});
      return {};
    }
    next += known ? 0 : 1;
  }
  if (stage.has_unlike_teams() && next == first + 1) {
    faults.push_back(
        {fmt::format("stage {} names body t{} for each of its replicas", stage.name, first),
         fmt::format("replicas of one body: body=t{} alone", first)});
    return {};
  }
  return next;
}

/// Checks that the bodies of a stage, from `first` to the one before `end`, differ, that their
/// parameters have the same shapes, and that not all of its replicas compute alone.
void check_unlike(const Plan& plan, const PlanStage& stage, std::size_t first, std::size_t end,
                  PlanFaults& faults) {
  bool has_team = false;
  std::map<std::string, std::string_view> named;   // by text without a name
  std::map<std::string_view, std::string> shapes;  // of parameters, by name
  for (std::size_t b = first; b < end; ++b) {
    PlanBody body = plan.bodies[b];
    has_team = has_team || body.members() > 1;
    body.name = "t";
    for (const BodyTensor& one : plan.bodies[b].tensors) {
      if (!one.parameter) continue;
      const std::string shape = print_extents(one.shape);
      const std::string& before = shapes.try_emplace(one.name, shape).first->second;
      if (before == shape) continue;
      faults.push_back(
          {fmt::format("stage {}: parameter '{}' has shape {} in body {}, and {} before",
                       stage.name, one.name, shape, plan.bodies[b].name, before),
           "replicas of a stage have the same parameters"});
    }
    const auto [other, added] = named.emplace(print_body(body), plan.bodies[b].name);
    if (added) continue;
    faults.push_back({fmt::format("stage {}: bodies {} and {} are the same", stage.name,
                                  other->second, plan.bodies[b].name),
                      "replicas that do the same have one body"});
  }
  if (has_team) return;
  faults.push_back({fmt::format("stage {}: no replica has several members", stage.name),
                    "replicas that are single ranks have no bodies"});
}

}  // namespace

void check_bodies(const Plan& plan, PlanFaults& faults) {
  std::size_t next = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    if (!stage.has_teams()) continue;
    const std::optional<std::size_t> end = check_numbers(plan, stage, next, faults);
    if (!end) return;
    const std::size_t first = next;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      if (stage.body_of(i) != static_cast<int>(next)) continue;
      check_name({"body", 't', next}, plan.bodies[next].name, faults);
      BodyChecker(plan, static_cast<int>(s), i, plan.bodies[next], faults).run();
      if (++next == *end) break;
    }
    if (faults.empty()) check_unlike(plan, stage, first, *end, faults);
  }
  if (next == plan.bodies.size()) return;
  faults.push_back({fmt::format("body {} is of no stage", plan.bodies[next].name),
                    "a stage names its body by body="});
}

}  // namespace agpcs
