// SPDX-License-Identifier: Apache-2.0
// The C interface of the compiler, for the Python package (agpcs/_agpcs.py): text in, text out. No
// type of one Python is in it, so one library serves all of them. The interface for users is in
// agpcs/*.py.
//
// Texts are UTF-8 with their number of bytes. No function throws or prints. What `_new` or a call
// returns lives until its `_free`. Functions may be called on several threads, each object on one
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// Bytes that a caller has.
struct AgpcsText {
  const char* data;
  std::size_t bytes;
};

/// What a call returns: a code and texts. The code is 0 if all went well, and the texts are the
/// results. Otherwise it is the exit code of a command with that error (1: wrong input, 2: wrong
/// use, 3: infeasible, else: another failure), and text 0 is the message.
struct AgpcsReply;
int agpcs_reply_code(const AgpcsReply* reply);
/// Text number `index`; empty if there are fewer. It lives as long as the reply.
AgpcsText agpcs_reply_text(const AgpcsReply* reply, std::size_t index);
void agpcs_reply_free(AgpcsReply* reply);

/// The version, "0.1.0".
AgpcsText agpcs_version();

/// Asks a search to end. It may be raised on any thread while agpcs_compile runs.
struct AgpcsInterrupt;
AgpcsInterrupt* agpcs_interrupt_new();
void agpcs_interrupt_raise(AgpcsInterrupt* interrupt);
void agpcs_interrupt_free(AgpcsInterrupt* interrupt);

/// Plans. `options`: a JSON object of the options, by the names in c_options.cc. `model`: an ONNX
/// file's bytes, or no data if the option "model" is a path. Texts: the plan, warnings, the bound:
/// the keys of agpcs-compile's JSON about it, and its "text".
AgpcsReply* agpcs_compile(AgpcsText options, AgpcsText model, const AgpcsInterrupt* interrupt);

/// Text: what `agpcs-plan show --json` prints of a plan's text, whose name in messages is `file`.
AgpcsReply* agpcs_plan_json(AgpcsText plan, AgpcsText file);

/// Runs agpcs-plan with the words of a JSON array. The code is the command's; texts: what it
/// printed to either stream.
AgpcsReply* agpcs_plan_command(AgpcsText words);

/// Text: the plan in a file, read as the commands read one.
AgpcsReply* agpcs_read_plan(AgpcsText path);

/// Text: what is to be measured of a model (an ONNX file's bytes) for a profile (to_measure.h), as
/// JSON. `options` are those of agpcs_compile, `devices` a JSON array of names.
AgpcsReply* agpcs_to_measure(AgpcsText options, AgpcsText model, AgpcsText devices);

/// Text: the profile file that holds these measurements, digest included.
AgpcsReply* agpcs_sealed_profile(AgpcsText measurements, AgpcsText file);

/// The drift detector of a job whose ranks measure their steps by themselves.
struct AgpcsDrift;
/// How many quantities a rank measures in a step.
int agpcs_drift_quantities();
/// Sets `*drift`, or null. The reply has no text.
AgpcsReply* agpcs_drift_new(AgpcsText plan, AgpcsDrift** drift);
/// Turns the rank's mean seconds in each of `steps` steps, by quantity, into what it shares of
/// them. `processor`: seconds of processor time in its computing; 0: not known, as on an
/// accelerator. An idle rank shares what its probes say instead.
void agpcs_drift_statistics(AgpcsDrift* drift, int rank, double processor, int steps,
                            double* figures);
/// Adds what a probe of the idle rank's device took.
void agpcs_drift_add_probe(AgpcsDrift* drift, int rank, double seconds);
/// Adds what all ranks shared in a step: `figures` by rank, then by quantity. Text: a JSON array of
/// [text, quantity, rank, factor, since] for each change.
AgpcsReply* agpcs_drift_add(AgpcsDrift* drift, std::int64_t step, const double* figures, int ranks);
void agpcs_drift_free(AgpcsDrift* drift);

}  // extern "C"
