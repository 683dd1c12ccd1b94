# SPDX-License-Identifier: Apache-2.0
"""The report as a page: gpu.md of what gpu.json has."""


def number(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def cell(value):
    return number(value).replace("|", "\\|").replace("\n", " ")


def table(rows):
    columns = list(rows[0])
    yield "| " + " | ".join(columns) + " |"
    yield "| " + " | ".join("---" for _ in columns) + " |"
    for row in rows:
        yield "| " + " | ".join(cell(row.get(column)) for column in columns) + " |"


def figures(outcome):
    for figure in outcome["figures"]:
        yield {"figure": figure["name"], "value": f"{number(figure['value'])} {figure['unit']}".strip(),
               "target": figure["target"], "met": {None: "", True: "yes", False: "**no**"}[figure["met"]]}


def part(outcome):
    yield f"## {outcome['part']}: {outcome['state']}"
    yield ""
    yield outcome["what"] + "."
    if outcome["why"]:
        yield ""
        yield f"{outcome['state'].capitalize()}: {outcome['why']}"
    rows = list(figures(outcome))
    for title, lines in ([("", rows)] if rows else []) + list(outcome["tables"].items()):
        yield ""
        if title:
            yield f"**{title}**"
            yield ""
        yield from table(lines)
    for title, lines in (("Faults", outcome["faults"]), ("Notes", outcome["notes"])):
        if lines:
            yield ""
            yield f"{title}:"
            yield ""
            for line in lines:
                yield "- " + line.strip().replace("\n", "\n  ")
    yield ""


def text(value):
    lines = ["# Proof on a GPU", ""]
    if value["rehearsal"]:
        lines += ["**A rehearsal on CPUs: it shows that the command works, and nothing of a GPU.**", ""]
    lines += list(table([{"": name, " ": fact} for name, fact in {**value["identity"], **value["machine"]}.items()]))
    lines += [""]
    lines += list(table([{"part": o["part"], "state": o["state"], "seconds": o["seconds"],
                          "missed": ", ".join(f["name"] for f in o["figures"] if f["met"] is False), "why": o["why"]}
                         for o in value["parts"]]))
    lines += [""]
    for outcome in value["parts"]:
        lines += part(outcome)
    return "\n".join(lines).rstrip() + "\n"
