// Reads Ignition configurations, one JSON document on each line, and says on each line what Ignition has against it.
package main

import (
	"bufio"
	"encoding/json"
	"os"

	"github.com/coreos/ignition/v2/config"
	"github.com/coreos/vcontext/report"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for lines.Scan() {
		_, found, err := config.Parse(lines.Bytes())
		errors := []string{}
		for _, entry := range found.Entries {
			if entry.Kind == report.Error {
				errors = append(errors, entry.String())
			}
		}
		if err != nil && len(errors) == 0 {
			errors = append(errors, err.Error())
		}
		said, err := json.Marshal(errors)
		if err != nil {
			panic(err)
		}
		out.Write(append(said, '\n'))
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
