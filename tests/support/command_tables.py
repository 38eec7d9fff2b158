"""Tables that commands read, and the lines of JSON that they print."""

import json


def write(path, rows, header="name,a,b,y,feeling"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]
