// SPDX-License-Identifier: Apache-2.0
#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "ir/plan/text.h"
#include "tests/ir/plan/text.h"

#include <agpcs/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace agpcs {
namespace {

using testing::kPlanText;
using testing::plan_text_with;

std::string message_of(std::string_view text) {
  const Result<Plan> plan = parse_plan(text, "m.plan");
  return plan.ok() ? "accepted" : plan.status().message();
}
std::string message_with(std::string_view from, std::string_view to) {
  return message_of(plan_text_with(from, to));
}

TEST(PlanText, PrintsBackAsItWasRead) {
  const Result<Plan> plan = parse_plan(kPlanText, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print_plan(*plan), kPlanText);
}

TEST(PlanText, AReportCarriesTwoWordsAndEverySoManyStepsWhatRanksMeasure) {
  EXPECT_EQ(report_words(4), 2 + 3 * 4);
  EXPECT_EQ(mean_report_bytes(4, 0), 16);
  EXPECT_EQ(mean_report_bytes(4, 1), 8 + 14 * 8);
  EXPECT_EQ(mean_report_bytes(4, 5), 16 + 21);  // 13 words in one step of five
}

TEST(PlanText, ExpectsSecondsOfAllReducesAndOfRanksThatSend) {
  const auto plan = parse_plan(kPlanText, "m.plan");
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->expect[4].name, "all-reduce s0");  // s1 has one rank
  EXPECT_DOUBLE_EQ(plan->expect[8].value, 42e-6);    // gradients do not return from a table alone
  EXPECT_DOUBLE_EQ(expected(*plan, plan->expect[8].name), 42e-6);
  EXPECT_EQ(find_expectation(*plan, "all-reduce s1"), nullptr);
  EXPECT_EQ(expected(*plan, "all-reduce s1"), 0);
  EXPECT_EQ(plan->training.statistics_every, 5);
}

TEST(PlanText, MaySayWhatGradientsTravelIn) {
  EXPECT_FALSE(parse_plan(kPlanText, "m.plan")->training.wire_type);
  for (const DType type : {DType::kFp16, DType::kBf16}) {
    const std::string text = plan_text_with(
        "statistics-every=5", "statistics-every=5 wire-type=" + std::string(name_of(type)));
    const Result<Plan> plan = parse_plan(text, "m.plan");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->training.wire_type, type);
    EXPECT_EQ(print_plan(*plan), text);
    EXPECT_EQ(plan->buckets[1].bytes(), 144 * 4);
    EXPECT_EQ(travelling_bytes(plan->training, plan->buckets[1]), 144 * 2);
  }
  for (const char* wrong : {"fp8", "fp32", "int16"}) {
    const std::string message =
        message_with("statistics-every=5", "statistics-every=5 wire-type=" + std::string(wrong));
    EXPECT_NE(message.find("error: unknown wire type '" + std::string(wrong) + "'\n"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("\n  hint: wire types: fp16, bf16"), std::string::npos) << message;
  }
}

TEST(PlanText, MaySayThatAttentionIsFused) {
  EXPECT_EQ(parse_plan(kPlanText, "m.plan")->training.attention, AttentionForm::kSteps);
  const std::string text =
      plan_text_with("statistics-every=5", "statistics-every=5 attention=fused");
  const Result<Plan> plan = parse_plan(text, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->training.attention, AttentionForm::kFused);
  EXPECT_EQ(print_plan(*plan), text);
  const std::string message =
      message_with("statistics-every=5", "statistics-every=5 attention=flash");
  EXPECT_NE(message.find("error: unknown form of attention 'flash'\n"), std::string::npos)
      << message;
}

TEST(PlanText, MaySayWhichWeightsAreFrozen) {
  const std::string text = plan_text_with(
      "cluster name=lab", "  frozen \"rotary table\"\n  frozen val_6\ncluster name=lab");
  const Result<Plan> plan = parse_plan(text, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->frozen, (std::vector<std::string>{"rotary table", "val_6"}));
  EXPECT_EQ(print_plan(*plan), text);
  EXPECT_EQ(message_with("cluster name=lab", "  frozen b\n  frozen a\ncluster name=lab"),
            "m.plan: error: frozen 'a' comes after 'b'\n"
            "  hint: frozen weights are sorted, each once");
  EXPECT_EQ(message_with("cluster name=lab", "  frozen a b\ncluster name=lab"),
            "m.plan:4:12: error: 'b' is more than a 'frozen' line has\n"
            "    frozen a b\n"
            "             ^");
  EXPECT_EQ(message_with("cluster name=lab", "  tuned a\ncluster name=lab"),
            "m.plan:4:3: error: 'tuned' where 'frozen', 'trained' or 'fused' is expected\n"
            "    tuned a\n"
            "    ^~~~~");
}

TEST(PlanText, MaySayWhichConstantsAreTrained) {
  for (const char* frozen : {"", "  frozen val_6\n"}) {
    const std::string text =
        plan_text_with("cluster name=lab", std::string(frozen) +
                                               "  trained \"a scale\"\n  trained val_7\n"
                                               "cluster name=lab");
    const Result<Plan> plan = parse_plan(text, "m.plan");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->trained, (std::vector<std::string>{"a scale", "val_7"}));
    EXPECT_EQ(print_plan(*plan), text);
  }
  EXPECT_EQ(message_with("cluster name=lab", "  trained b\n  trained a\ncluster name=lab"),
            "m.plan: error: trained 'a' comes after 'b'\n"
            "  hint: trained weights are sorted, each once");
}

TEST(PlanText, MaySayWhichTypesOfOperatorsAreFused) {
  for (const char* before : {"", "  frozen val_6\n  trained val_7\n"}) {
    const std::string text =
        plan_text_with("cluster name=lab", std::string(before) +
                                               "  fused Gelu\n  fused LayerNormalization\n"
                                               "cluster name=lab");
    const Result<Plan> plan = parse_plan(text, "m.plan");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->fused, (std::vector<std::string>{"Gelu", "LayerNormalization"}));
    EXPECT_EQ(print_plan(*plan), text);
  }
  EXPECT_EQ(message_with("cluster name=lab", "  fused Swish\n  fused Gelu\ncluster name=lab"),
            "m.plan: error: fused 'Gelu' comes after 'Swish'\n"
            "  hint: fused types of operators are sorted, each once");
}

TEST(PlanText, MaySayWhichLabelsCountAndWhatTheyAre) {
  const std::string line = "loss softmax_cross_entropy logits=1 aux=0.4";
  const std::string text = plan_text_with(
      line,
      line + "\n  labels ignore-index=-100 smoothing=0.1 class-axis=-1 next-token=\"the ids\"");
  const Result<Plan> plan = parse_plan(text, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->training.loss.ignore_index, -100);
  EXPECT_EQ(plan->training.loss.label_smoothing, 0.1);
  EXPECT_EQ(plan->training.loss.class_axis, -1);
  EXPECT_EQ(plan->training.loss.next_token, "the ids");
  EXPECT_EQ(print_plan(*plan), text);
  EXPECT_TRUE(parse_plan(plan_text_with(line, line + "\n  labels smoothing=0.5"), "m.plan").ok());
}

TEST(PlanText, LabelsAreOfOneLossAndInBounds) {
  const std::string line = "loss softmax_cross_entropy logits=1 aux=0.4";
  EXPECT_EQ(message_with(line, "loss mse logits=1 aux=0.4\n  labels ignore-index=0"),
            "m.plan: error: loss mse has labels\n  hint: labels are of softmax_cross_entropy");
  EXPECT_EQ(message_with(line, line + "\n  labels smoothing=1"),
            "m.plan: error: loss's smoothing is 1, not in [0, 1)");
  EXPECT_EQ(message_with(line, line + "\n  labels class-axis=2"),
            "m.plan:7:10: error: class-axis is 2\n"
            "    labels class-axis=2\n"
            "           ^~~~~~~~~~~~\n"
            "  hint: 1, or -1 for the last axis");
  EXPECT_EQ(message_with(line, "loss hinge logits=1 aux=0.4"),
            "m.plan:6:6: error: unknown loss 'hinge'\n"
            "    loss hinge logits=1 aux=0.4\n"
            "         ^~~~~\n"
            "  hint: losses: softmax_cross_entropy, mse, bce_with_logits, model, output");
}

TEST(TravellingType, IsTheWireTypeForFp32GradientsAlone) {
  EXPECT_EQ(travelling_type(DType::kFp32, DType::kBf16), DType::kBf16);
  EXPECT_EQ(travelling_type(DType::kFp64, DType::kBf16), DType::kFp64);
  EXPECT_EQ(travelling_type(DType::kFp16, DType::kBf16), DType::kFp16);
  EXPECT_EQ(travelling_type(DType::kFp32, {}), DType::kFp32);
}

TEST(PlanText, SaysWhatItMeans) {
  const Result<Plan> plan = parse_plan(kPlanText, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->made_by.seed, 7u);
  EXPECT_EQ(plan->training.loss.outputs[1], std::pair(std::string("aux"), 0.4));
  EXPECT_EQ(plan->training.optimizer.momentum, 0.9);
  EXPECT_EQ(plan->stages[0].devices, (std::vector<std::string>{"a/0", "a/1"}));
  EXPECT_EQ(plan->stages[0].operators[1].first, "odd name");
  EXPECT_TRUE(plan->stages[1].recompute);
  EXPECT_FALSE(plan->cuts[0].tensors[1].batched);
  EXPECT_EQ(plan->cuts[0].tensors[1].elements_per_row(), 12);
  EXPECT_EQ(plan->buckets[1].elements(), 144);
  EXPECT_EQ(plan->rank_count(), 3);
  EXPECT_EQ(plan->stage_of_rank(2), 1);
  EXPECT_EQ(plan->stage_of_rank(3), -1);
  EXPECT_DOUBLE_EQ(plan->expect[0].value, 1.23e-3);
  EXPECT_DOUBLE_EQ(plan->expect[9].value, 3.21e9);
}

TEST(PlanText, AnEmptyFileIsNoPlan) {
  EXPECT_EQ(message_of(""),
            "m.plan:1: error: the file is empty\n"
            "  hint: a plan begins with the line 'agpcs-plan 2'");
  EXPECT_EQ(message_of("\x89PNG\r\n"),
            "m.plan:1: error: not a plan\n  hint: a plan begins with the line 'agpcs-plan 2'");
}

TEST(PlanText, CarriageReturnsAreNamedForWhatTheyAre) {
  EXPECT_EQ(
      message_of("agpcs-plan 2\r\nmade-by agpcs=0.1.0\r\n"),
      "m.plan:1: error: lines end in CR LF, not in LF\n"
      "  hint: a tool changed the file; in git, '*.plan text eol=lf' in .gitattributes prevents "
      "that");
}

TEST(PlanText, AnotherVersionIsRefusedAndItsWriterNamed) {
  EXPECT_EQ(message_of("agpcs-plan 3\nmade-by agpcs=3.4.5 how=unknown\nwhatever\n"),
            "m.plan:1:12: error: plan format '3', but AGPCS 0.1.0 reads format 2 only\n"
            "    agpcs-plan 3\n"
            "               ^\n"
            "  hint: AGPCS 3.4.5 wrote it; compile the plan again, or read it with that version");
  EXPECT_EQ(message_of("agpcs-plan 1\nmade-by agpcs=0.1.0\n"),
            "m.plan:1:12: error: plan format '1', but AGPCS 0.1.0 reads format 2 only\n"
            "    agpcs-plan 1\n"
            "               ^\n"
            "  hint: AGPCS 0.1.0 wrote it; 'agpcs-plan upgrade' makes a plan of format 2 of it");
}

TEST(PlanText, AMissingLineIsNamed) {
  EXPECT_EQ(message_with("loss softmax_cross_entropy logits=1 aux=0.4\n", ""),
            "m.plan:6:1: error: 'optimizer' where 'loss' is expected\n"
            "    optimizer sgd learning-rate=0.01 momentum=0.9 weight-decay=0\n"
            "    ^~~~~~~~~");
  EXPECT_EQ(message_of(kPlanText.substr(0, kPlanText.find("expect\n"))),
            "m.plan:44: error: the plan ends where 'expect' is expected");
  EXPECT_EQ(message_with("  gradient fc1.bias elements=16\n", ""),
            "m.plan:18:1: error: gradients=2, but its lines have 1\n"
            "    bucket b1 stage=s0 algorithm=ring type=fp32 gradients=2 elements=144\n"
            "    ^~~~~~");
  EXPECT_EQ(message_with("  step 1.23ms\n", ""),
            "m.plan: error: expect has 'throughput' where 'step' is expected\n"
            "  hint: expectations are complete and in the order of docs/reference/plan_format.md");
}

TEST(PlanText, AMisspelledKeyGetsTheRightOne) {
  EXPECT_EQ(message_with("samples=3,1", "smaples=3,1"),
            "m.plan:8:34: error: unknown key 'smaples' in 'stage'\n"
            "    stage s0 ranks=0-1 devices=a/0-1 smaples=3,1 recompute=no operators=3\n"
            "                                     ^~~~~~~~~~~\n"
            "  hint: did you mean 'samples'? keys: ranks, devices, samples, odd, body, "
            "members, recompute, segments, activations-in, state-in, operators");
}

TEST(PlanText, AMissingKeyIsNamedWithTheOrder) {
  EXPECT_EQ(message_with(" devices=a/0-1", ""),
            "m.plan:8:20: error: key 'devices' is missing before 'samples'\n"
            "    stage s0 ranks=0-1 samples=3,1 recompute=no operators=3\n"
            "                       ^~~~~~~~~~~\n"
            "  hint: keys come in this order: ranks, devices, samples, odd, body, "
            "members, recompute, segments, activations-in, state-in, operators");
  EXPECT_EQ(message_with(" interrupted=no", ""),
            "m.plan:2:67: error: 'made-by' line ends where 'interrupted=' is expected\n"
            "    made-by agpcs=0.1.0 seed=7 seeder=metis refiner=none evaluations=0\n"
            "                                                                      ^");
}

TEST(PlanText, AMisspelledInstructionGetsTheRightOne) {
  EXPECT_EQ(
      message_with("recv_gradient c0 mb=0 after", "recv_gradeint c0 mb=0 after"),
      "m.plan:24:3: error: unknown instruction 'recv_gradeint'\n"
      "    recv_gradeint c0 mb=0 after=forward:0\n"
      "    ^~~~~~~~~~~~~\n"
      "  hint: did you mean 'recv_gradient'? instructions: forward, backward, backward_input, "
      "backward_weight, send, recv, send_gradient, recv_gradient, all_reduce, "
      "reduce_scatter, all_gather, update, report, gather_forward, gather_backward");
  EXPECT_EQ(message_with("after=gradients:b1:1", "after=gradient:b1:1"),
            "m.plan:30:17: error: 'gradient:b1:1' names no instruction\n"
            "    all_reduce b1 after=gradient:b1:1\n"
            "                  ^~~~~~~~~~~~~~~~~~~\n"
            "  hint: did you mean 'gradients'?");
}

TEST(PlanText, AMisspelledSectionGetsTheRightOne) {
  EXPECT_EQ(message_with("bucket b1", "buckte b1"),
            "m.plan:18:1: error: unknown line 'buckte'\n"
            "    buckte b1 stage=s0 algorithm=ring type=fp32 gradients=2 elements=144\n"
            "    ^~~~~~\n"
            "  hint: did you mean 'bucket'? sections: stage, body, cut, flow, bucket, program, "
            "expect");
}

TEST(PlanText, SeveralMistakesAreReportedTogether) {
  std::string text = plan_text_with("seed=7", "seed=x");
  text.replace(text.find("schedule=1f1b"), 13, "schedule=1f1c");
  EXPECT_EQ(message_of(text),
            "m.plan:2:21: error: seed is 'x', not an integer from 0 to 2^64 - 1\n"
            "    made-by agpcs=0.1.0 seed=x seeder=metis refiner=none evaluations=0 "
            "interrupted=no\n"
            "                        ^~~~~~\n"
            "m.plan:5:34: error: unknown schedule '1f1c'\n"
            "    training batch=8 micro-batches=2 schedule=1f1c precision=fp32 "
            "statistics-every=5\n"
            "                                     ^~~~~~~~~~~~~\n"
            "  hint: did you mean '1f1b'? schedules: 1f1b, gpipe, zero-bubble, interleaved");
}

TEST(PlanText, AnUnknownPrecisionLossOrOptimizerIsShown) {
  EXPECT_EQ(message_with("precision=fp32", "precision=fp23"),
            "m.plan:5:48: error: unknown precision 'fp23'\n"
            "    training batch=8 micro-batches=2 schedule=1f1b precision=fp23 "
            "statistics-every=5\n"
            "                                                   ^~~~~~~~~~~~~~\n"
            "  hint: did you mean 'fp32'? precisions: fp32, tf32, fp16, bf16");
  EXPECT_EQ(
      message_with("loss softmax_cross_entropy", "loss mes"),
      "m.plan:6:6: error: unknown loss 'mes'\n"
      "    loss mes logits=1 aux=0.4\n"
      "         ^~~\n"
      "  hint: did you mean 'mse'? losses: softmax_cross_entropy, mse, bce_with_logits, model, "
      "output");
  EXPECT_EQ(message_with("optimizer sgd", "optimizer lamb"),
            "m.plan:7:11: error: unknown optimizer 'lamb'\n"
            "    optimizer lamb learning-rate=0.01 momentum=0.9 weight-decay=0\n"
            "              ^~~~\n"
            "  hint: optimizers: sgd, adam, adamw");
}

TEST(PlanText, HasEachOptimizerWithItsSettings) {
  const std::string sgd = "optimizer sgd learning-rate=0.01 momentum=0.9 weight-decay=0";
  ASSERT_NE(std::string(kPlanText).find(sgd), std::string::npos);
  for (const std::string line :
       {"optimizer sgd learning-rate=0.01 momentum=0.9 nesterov=yes weight-decay=0",
        "optimizer adam learning-rate=0.001 beta1=0.9 beta2=0.999 epsilon=1e-08 weight-decay=0",
        "optimizer adamw learning-rate=0.001 beta1=0.9 beta2=0.999 epsilon=1e-08 "
        "weight-decay=0.01"}) {
    std::string text{kPlanText};
    text.replace(text.find(sgd), sgd.size(), line);
    const Result<Plan> plan = parse_plan(text, "m.plan");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(print_plan(*plan), text);
  }
  EXPECT_THAT(message_with("momentum=0.9 weight-decay=0", "momentum=0 nesterov=yes weight-decay=0"),
              ::testing::HasSubstr("optimizer's nesterov needs sgd with a momentum above 0"));
}

TEST(PlanText, AnotherSpellingOfTheSameIsRefused) {
  EXPECT_EQ(message_with("learning-rate=0.01", "learning-rate=0.010"),
            "m.plan:7:1: error: the line is not spelled as AGPCS writes it\n"
            "    optimizer sgd learning-rate=0.010 momentum=0.9 weight-decay=0\n"
            "    ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~\n"
            "  hint: write 'optimizer sgd learning-rate=0.01 momentum=0.9 weight-decay=0'");
}

TEST(PlanText, LinesEndInLineFeedsAlone) {
  EXPECT_EQ(message_with("interrupted=no\n", "interrupted=no\r\n"),
            "m.plan:2: error: carriage return at the end of the line\n"
            "  hint: lines end in LF alone");
  EXPECT_EQ(message_of(kPlanText.substr(0, kPlanText.size() - 1)),
            "m.plan:63:20: error: the last line has no line end\n"
            "    bytes-sent b/0 0B\n"
            "                     ^\n"
            "  hint: is the file truncated?");
}

TEST(PlanText, AFigureOfTheWrongUnitIsRefused) {
  EXPECT_EQ(message_with("step 1.23ms", "step 1.23MB"),
            "m.plan:45:8: error: '1.23MB' is no figure such as 1.50ks\n"
            "    step 1.23MB\n"
            "         ^~~~~~");
}

TEST(Names, AreQuotedWhereTheyMust) {
  for (const std::string name : {"plain", "/layer1/conv1/Conv", "with space", "a=b", "a,b", "q\"q",
                                 "back\\slash", "tab\there", "", "\xc3\xa4", "line\nend"}) {
    const std::string token = agpcs::quoted(name);
    EXPECT_EQ(unquoted(token), name) << token;
    EXPECT_EQ(split_outside_quotes(token + " x", ' ').size(), 2u) << token;
  }
  EXPECT_EQ(agpcs::quoted("/layer1/conv1/Conv"), "/layer1/conv1/Conv");
  EXPECT_EQ(agpcs::quoted("a b\n"), "\"a b\\x0a\"");
  EXPECT_EQ(unquoted("\"open"), std::nullopt);
  EXPECT_EQ(unquoted("\"a\"b\""), std::nullopt);
}

TEST(Lists, AreRuns) {
  EXPECT_EQ(print_ranks({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(parse_ranks("0-2,5,7-8"), (std::vector<int>{0, 1, 2, 5, 7, 8}));
  EXPECT_EQ(parse_ranks("3-1"), std::nullopt);
  EXPECT_EQ(parse_ranks("0-99999999999"), std::nullopt);
  EXPECT_EQ(print_samples({16, 16, 16, 20}), "16x3,20");
  EXPECT_EQ(parse_samples("16x3,20"), (std::vector<std::int64_t>{16, 16, 16, 20}));
  EXPECT_EQ(parse_samples("16x0"), std::nullopt);
  EXPECT_EQ(print_devices({"a/0", "a/1", "b-2/1", "b-2/0", "c"}), "a/0-1,b-2/1,b-2/0,c");
  EXPECT_EQ(parse_devices("a/0-1,b-2/1,b-2/0,c"),
            (std::vector<std::string>{"a/0", "a/1", "b-2/1", "b-2/0", "c"}));
}

TEST(Lists, AreNoLongerThanAPlanNeeds) {
  const auto twice = [](const std::string& half) { return half + ',' + half; };
  EXPECT_EQ(parse_ranks("0-1048575")->size(), 1048576U);
  EXPECT_EQ(parse_ranks("0-1048576"), std::nullopt);
  EXPECT_EQ(parse_ranks(twice("0-1048575")), std::nullopt);
  EXPECT_EQ(parse_devices("a/0-1048576"), std::nullopt);
  EXPECT_EQ(parse_devices(twice("a/0-1048575")), std::nullopt);
  EXPECT_EQ(parse_samples("4x1048576")->size(), 1048576U);
  EXPECT_EQ(parse_samples(twice("4x1048576")), std::nullopt);
}

TEST(Lists, NumbersThatAreNoneOfADeviceBelongToItsName) {
  for (const std::string name :
       {"a/9223372036854775807", "a/9223372036854775806-9223372036854775807", "a/2147483648",
        "a/007", "a/-0", "a/1-01"}) {
    EXPECT_EQ(parse_devices(name), std::vector<std::string>{name});
    EXPECT_EQ(print_devices({name}), name);
  }
  EXPECT_EQ(parse_devices("a/2147483647"), std::vector<std::string>{"a/2147483647"});
  EXPECT_EQ(parse_ranks("2147483647"), std::vector<int>{2147483647});
  EXPECT_EQ(parse_ranks("2147483648"), std::nullopt);
  EXPECT_EQ(parse_ranks("-1"), std::nullopt);
}

TEST(Figures, HaveThreeDigitsAndReadBack) {
  EXPECT_EQ(figure(0.12345, "s"), "123ms");
  EXPECT_EQ(figure(0.9996, "s"), "1.00s");
  EXPECT_EQ(figure(1e-7, "s"), "100ns");
  EXPECT_EQ(figure(0, "s"), "0s");
  EXPECT_EQ(figure(3.2149e9, "B"), "3.21GB");
  EXPECT_EQ(figure(999, "B"), "999B");
  EXPECT_EQ(figure(999.6, "B"), "1.00kB");
  EXPECT_EQ(figure(7, "B"), "7B");
  EXPECT_EQ(figure(4163.2, "samples/s"), "4160 samples/s");
  EXPECT_EQ(figure(0.0512345, ""), "0.0512");
  for (const std::string_view unit : {"s", "B", "samples/s", ""}) {
    for (double value = 1.2345e-6; value < 1e15; value *= 3.7) {
      if (unit == "B" && value < 1) continue;
      const std::string text = figure(value, unit);
      const auto read = read_figure(text, unit);
      ASSERT_TRUE(read) << text;
      EXPECT_EQ(figure(*read, unit), text);
      EXPECT_NEAR(*read, value, (unit == "B" && value < 100 ? 0.5 : 0.006 * value)) << text;
    }
  }
  EXPECT_EQ(read_figure("12", "s"), std::nullopt);
  EXPECT_EQ(read_figure("ms", "s"), std::nullopt);
  EXPECT_EQ(read_figure("1.2.3s", "s"), std::nullopt);
}

}  // namespace
}  // namespace agpcs
