package main

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const engineLabel = "llm-d.ai/engine-type"

// metrics are what an engine said of itself last.
type metrics struct{ waiting, running, cache float64 }

// names of an engine's metrics, by its pod's label; vLLM's where it has none.
var names = map[string][3]string{
	"vllm":   {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"},
	"sglang": {"sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage"},
}

// scrape reads an engine's metrics until it is told to stop. One that does not answer keeps what it said before.
func (s *store) scrape(one *server) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(s.refresh)
	defer ticker.Stop()
	for {
		select {
		case <-one.stop:
			return
		case <-ticker.C:
		}
		s.Lock()
		wanted, there := names[one.labels[engineLabel]]
		s.Unlock()
		if !there {
			wanted = names["vllm"]
		}
		if found, err := read(client, "http://"+one.address+s.metricsPath, wanted); err == nil {
			s.Lock()
			one.metrics = found
			s.Unlock()
		}
	}
}

func read(client *http.Client, where string, wanted [3]string) (metrics, error) {
	answer, err := client.Get(where)
	if err != nil {
		return metrics{}, err
	}
	defer answer.Body.Close()
	var found [3]float64
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value := parsed(lines.Text())
		for at, one := range wanted {
			if name == one {
				found[at] = value
			}
		}
	}
	return metrics{found[0], found[1], found[2]}, lines.Err()
}

// parsed returns the name and the value of a line in Prometheus' text format.
func parsed(line string) (string, float64) {
	name, rest, labelled := strings.Cut(line, "{")
	if labelled {
		rest = rest[strings.LastIndex(rest, "}")+1:]
	} else {
		name, rest, _ = strings.Cut(line, " ")
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return "", 0
	}
	value, _ := strconv.ParseFloat(fields[0], 64)
	return name, value
}
