"""Pictures with targets in files beside them: masks, and boxes as COCO, YOLO or Pascal VOC write them."""
