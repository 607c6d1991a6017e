package main

import (
	"container/list"
	"hash/fnv"
)

const (
	smallestBlock   = 64 // tokens; a smaller size is taken for this one
	charactersToken = 4
)

// recent are the blocks of prompts that a server was given last.
type recent struct {
	capacity int
	order    *list.List
	places   map[uint64]*list.Element
}

func newRecent(capacity int) *recent {
	return &recent{capacity, list.New(), map[uint64]*list.Element{}}
}

func (r *recent) add(blocks []uint64) {
	for _, block := range blocks {
		if place, there := r.places[block]; there {
			r.order.MoveToFront(place)
			continue
		}
		r.places[block] = r.order.PushFront(block)
		if r.order.Len() > r.capacity {
			last := r.order.Back()
			delete(r.places, r.order.Remove(last).(uint64))
		}
	}
}

func (r *recent) has(block uint64) bool { _, there := r.places[block]; return there }

// blocksOf returns the hash of each whole block of a prompt, which has the blocks before in it, and the model.
func (c *config) blocksOf(model, prompt string) []uint64 {
	if !c.learns {
		return nil
	}
	var blocks []uint64
	size := c.block * charactersToken
	hash := fnv.New64a()
	hash.Write([]byte(model))
	for at := 0; at+size <= len(prompt) && len(blocks) < c.longest/c.block; at += size {
		hash.Write([]byte(prompt[at : at+size]))
		blocks = append(blocks, hash.Sum64())
	}
	return blocks
}

// held returns how many blocks of a prompt each server has, up to the first that none has.
func held(blocks []uint64, servers []*server) map[*server]int {
	counts := map[*server]int{}
	for _, block := range blocks {
		found := false
		for _, one := range servers {
			if one.known.has(block) {
				counts[one]++
				found = true
			}
		}
		if !found {
			break
		}
	}
	return counts
}
